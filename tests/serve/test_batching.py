import asyncio
import threading
from dataclasses import replace

import pytest
import torch

from atoll.sampling.memory import give_back
from atoll.serve import batching
from atoll.serve.batching import Busy, Scheduler
from atoll.serve.limits import Limits
from atoll.serve.tickets import Dropped


def with_scheduler(model, action, **limits):
    """Run something on an event loop beside a scheduler at work."""

    async def main():
        scheduler = Scheduler({model.name: model}, Limits(**limits))
        scheduler.start()
        try:
            return await asyncio.wait_for(action(scheduler), 60)
        finally:
            await asyncio.to_thread(scheduler.stop)

    return asyncio.run(main())


def test_many_ask_at_once_and_each_gets_its_own(model):
    async def ask(scheduler):
        requests = [model.sampler.request(num=1, seed=seed, steps=4) for seed in range(20)]
        tickets = [scheduler.submit(model, one, str(n % 3)) for n, one in enumerate(requests)]
        return [(await ticket.result()).x_0 for ticket in tickets]

    for seed, x_0 in enumerate(with_scheduler(model, ask)):
        expected = model.sampler.sample(num=1, seed=seed, steps=4)
        torch.testing.assert_close(x_0, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


def test_the_queue_is_bounded(model):
    async def ask(scheduler):
        ended, go = threading.Event(), threading.Event()
        scheduler.run(lambda: go.wait(600))  # the model is busy with something else
        tickets = [scheduler.submit(model, model.sampler.request(num=1)) for _ in range(2)]
        with pytest.raises(Busy, match="too many") as caught:
            scheduler.submit(model, model.sampler.request(num=1))
        assert caught.value.retry_after >= 1
        go.set()
        for ticket in tickets:
            await ticket.result()
        await asyncio.sleep(0)
        assert not scheduler.tickets
        await scheduler.submit(model, model.sampler.request(num=1)).result()
        ended.set()

    with_scheduler(model, ask, queue=2)


def test_samples_that_wait_are_bounded_but_one_request_is_always_taken(model):
    async def ask(scheduler):
        first = scheduler.submit(model, model.sampler.request(num=5))
        with pytest.raises(Busy):
            scheduler.submit(model, model.sampler.request(num=1))
        await first.result()

    with_scheduler(model, ask, waiting=4)


def test_who_cancels_gets_an_end(model):
    async def ask(scheduler):
        ticket = scheduler.submit(model, model.sampler.request(num=8, steps=5000))
        scheduler.cancel(ticket)
        with pytest.raises(Dropped, match="cancelled"):
            await ticket.result()
        return len(scheduler.crowds[model.name].rows)

    assert with_scheduler(model, ask) == 0


def test_stopping_tells_everybody(model):
    async def ask(scheduler):
        ticket = scheduler.submit(model, model.sampler.request(num=8, steps=5000))
        await asyncio.to_thread(scheduler.stop)
        with pytest.raises(Dropped, match="stopping"):
            await ticket.result()
        with pytest.raises(Busy, match="stopping"):
            scheduler.submit(model, model.sampler.request(num=1))
        assert not scheduler.alive

    with_scheduler(model, ask)


def test_a_grace_that_is_over_ends_what_is_under_way(model):
    async def ask(scheduler):
        ticket = scheduler.submit(model, model.sampler.request(num=8, steps=50_000))
        scheduler.finish_within(0.05)
        with pytest.raises(Dropped, match="not done"):
            await ticket.result()

    with_scheduler(model, ask)


def test_a_step_that_fails_does_not_end_the_server(model, caplog):
    async def ask(scheduler):
        crowd = scheduler.crowds[model.name]
        step = crowd.rows.step
        crowd.rows.step = lambda chosen: 1 / 0
        with pytest.raises(Dropped, match="the model failed"):
            await scheduler.submit(model, model.sampler.request(num=1)).result()
        crowd.rows.step = step
        return await scheduler.submit(model, model.sampler.request(num=1)).result()

    assert len(with_scheduler(model, ask).x_0) == 1
    assert "ZeroDivisionError" in caplog.text


def test_other_work_is_done_between_two_steps_in_the_same_thread(model):
    async def ask(scheduler):
        name = await asyncio.wrap_future(scheduler.run(lambda: threading.current_thread().name))
        with pytest.raises(ZeroDivisionError):
            await asyncio.wrap_future(scheduler.run(lambda: 1 / 0))
        return name

    assert with_scheduler(model, ask) == "model"


def test_a_model_that_takes_the_place_of_another_lets_it_finish(model):
    """Requests before it are those of the old one, requests after it those of the new one."""
    other = replace(model, sampler=model.sampler)

    async def ask(scheduler):
        go = threading.Event()
        scheduler.run(lambda: go.wait(600))  # the model is busy while all of them arrive
        old = scheduler.crowds[model.name]
        first = scheduler.submit(model, model.sampler.request(num=2, seed=1, steps=3))
        scheduler.exchange(other)
        second = scheduler.submit(other, other.sampler.request(num=2, seed=2, steps=3))
        go.set()
        made = [(await ticket.result()).x_0 for ticket in (first, second)]
        new = scheduler.crowds[model.name]
        assert old.model is model
        assert new.model is other
        assert not old.busy
        return made

    for seed, x_0 in enumerate(with_scheduler(model, ask), start=1):
        expected = model.sampler.sample(num=2, seed=seed, steps=3)
        torch.testing.assert_close(x_0, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


def test_memory_is_given_back_once_nobody_asks(model, monkeypatch):
    given = threading.Event()
    monkeypatch.setattr(batching, "IDLE", 0.01)
    monkeypatch.setattr(batching, "give_back", given.set)

    async def ask(scheduler):
        for _ in range(2):  # after every quiet time again
            await scheduler.submit(model, model.sampler.request(num=1, steps=2)).result()
            assert await asyncio.to_thread(given.wait, 50)
            given.clear()

    with_scheduler(model, ask)
    give_back()  # the real one, wherever this runs

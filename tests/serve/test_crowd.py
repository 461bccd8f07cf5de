import asyncio
import time
from typing import Any

import pytest
import torch

from atoll.serve.crowd import Crowd
from atoll.serve.limits import Limits
from atoll.serve.models import Model
from atoll.serve.tickets import Failed, Made, Progress, Ticket


class Heard(Ticket):
    """A ticket whose events are kept where they happen; no loop is needed."""

    events_told: list[Any]

    def tell(self, event):
        self.events_told.append(event)


def ticket(model: Model, user="user", watched=0, deadline=None, **wanted):
    async def make():
        return Heard(
            model, model.sampler.request(**wanted), user, deadline or time.monotonic() + 3600, watched
        )

    one = asyncio.run(make())
    one.events_told = []
    return one


def stepped(crowd):
    while crowd.step():
        pass


def test_samples_are_those_of_the_sampler(model):
    crowd = Crowd(model, Limits())
    wishes = [
        {"num": 5, "seed": 3},
        {"num": 2, "seed": 4, "solver": "heun"},
        {"seeds": [5, 6], "guidance": 2.0},
    ]
    tickets = [ticket(model, str(number), **wish) for number, wish in enumerate(wishes)]
    for one in tickets:
        crowd.add(one)
        crowd.step()
    stepped(crowd)
    for one, wish in zip(tickets, wishes, strict=True):
        (made,) = one.events_told
        expected = model.sampler.trace(**wish)
        assert isinstance(made, Made)
        scale = float(expected.x_0.abs().max())
        torch.testing.assert_close(made.x_0, expected.x_0, atol=1e-5 * scale, rtol=0)
        torch.testing.assert_close(torch.from_numpy(made.shares), expected.shares, atol=1e-5, rtol=0)
        assert made.strategy == "full"


def test_who_made_what_is_told_as_the_sampler_tells_it(model):
    crowd, one = Crowd(model, Limits(rows=2)), ticket(model, num=3, provenance=True, solver="heun")
    crowd.add(one)
    stepped(crowd)
    way, expected = one.events_told[0].provenance, model.sampler.trace(num=3, solver="heun")
    assert way.times == expected.times
    torch.testing.assert_close(torch.from_numpy(way.weights), expected.weights, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        torch.from_numpy(way.disagreement), expected.disagreement, atol=1e-4, rtol=1e-3
    )


def test_who_watches_sees_samples_form(model):
    crowd, one = Crowd(model, Limits()), ticket(model, num=2, steps=5, watched=2)
    crowd.add(one)
    stepped(crowd)
    steps = [event for event in one.events_told if isinstance(event, Progress)]
    assert [event.step for event in steps] == [1, 2, 3, 4, 5]
    assert [event.preview is not None for event in steps] == [False, True, False, True, True]
    made = one.events_told[-1]
    torch.testing.assert_close(steps[-1].preview, made.x_0, atol=1e-4, rtol=1e-5)


def test_a_row_of_a_newcomer_moves_in_the_next_step(model):
    crowd = Crowd(model, Limits(rows=8))
    crowd.add(ticket(model, "many", num=64, steps=50))
    crowd.step()
    crowd.add(ticket(model, "one", num=1, steps=50))
    crowd.step()
    assert [row.at for row in crowd.rows.rows if row.owner.user == "one"] == [1]


def test_what_does_not_fit_waits_and_is_done(model):
    crowd, one = Crowd(model, Limits(rows=3)), ticket(model, num=8)
    crowd.add(one)
    crowd.step()
    assert (len(crowd.rows), len(crowd.line)) == (3, 5)
    stepped(crowd)
    assert len(one.events_told[0].x_0) == 8
    assert not crowd.works


def test_rows_of_those_who_go_leave(model):
    crowd = Crowd(model, Limits(rows=3))
    gone, other = ticket(model, "a", num=8), ticket(model, "b", num=1)
    crowd.add(gone)
    crowd.add(other)
    crowd.step()
    gone.cancelled = True
    crowd.step()
    assert {row.owner for row in crowd.rows.rows} == {other}
    assert gone.events_told == [Failed("cancelled", cancelled=True)]
    stepped(crowd)
    assert isinstance(other.events_told[0], Made)
    assert len(crowd.line) == 0


def test_who_waits_too_long_is_told_so(model):
    crowd = Crowd(model, Limits(seconds=2))
    late = ticket(model, num=1, deadline=time.monotonic() - 1)
    crowd.add(late)
    assert not crowd.step()
    assert "within 2 s" in late.events_told[0].reason


def test_a_mistake_that_shows_late_fails_its_request_alone(model, monkeypatch):
    from atoll.errors import ConfigError
    from atoll.sampling import parts

    def resolve(ensemble, request):
        if request.settings.seed == 13:
            raise ConfigError("this one cannot be had")
        return request.settings.strategy, None

    monkeypatch.setattr(parts, "resolve", resolve)
    crowd, wrong, right = Crowd(model, Limits()), ticket(model, seed=13), ticket(model, num=1)
    crowd.add(wrong)
    crowd.add(right)
    stepped(crowd)
    assert wrong.events_told == [Failed("this one cannot be had")]
    assert isinstance(right.events_told[0], Made)


def test_a_fault_in_the_beginning_ends_its_request_alone(model, monkeypatch, caplog):
    from atoll.sampling import rows

    started = rows.started
    monkeypatch.setattr(
        rows, "started", lambda *args: 1 / 0 if args[2].settings.seed == 13 else started(*args)
    )
    crowd, wrong, right = Crowd(model, Limits()), ticket(model, seed=13), ticket(model, num=1)
    crowd.add(wrong)
    crowd.add(right)
    stepped(crowd)
    assert "server's log" in wrong.events_told[0].reason
    assert isinstance(right.events_told[0], Made)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("resident", [None, 1])
def test_experts_are_loaded_once_for_all_requests(tmp_path, resident):
    from atoll.serve.models import open_models
    from tests.serving import served

    run = served(tmp_path / "run", resident=resident, strategy="ancestral")
    model = open_models(run.path)["run"]
    crowd = Crowd(model, Limits())
    tickets = [ticket(model, str(seed), num=4, seed=seed, steps=6) for seed in range(5)]
    for one in tickets:
        crowd.add(one)
    stepped(crowd)
    assert crowd.loads == 2
    for seed, one in enumerate(tickets):
        expected = model.sampler.sample(num=4, seed=seed, steps=6)
        scale = float(expected.abs().max())
        torch.testing.assert_close(one.events_told[0].x_0, expected, atol=1e-5 * scale, rtol=0)


def test_giving_up_leaves_nothing(model):
    crowd, one, other = Crowd(model, Limits(rows=1)), ticket(model, num=2), ticket(model, "other", num=1)
    crowd.add(one)
    crowd.step()
    crowd.add(other)
    crowd.fail("the end")
    assert one.events_told == other.events_told == [Failed("the end")]
    assert not crowd.step()

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from atoll import threads
from atoll.models import conditions
from atoll.sampling import opening
from atoll.sampling.abreast import ENOUGH, LEAST, Crew, crew, followers
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.rows import Rows, started
from atoll.sampling.sampler import Sampler
from tests.serving import served


@pytest.fixture
def ensemble(tmp_path, monkeypatch):
    """With products that are large enough for two cores, on a machine that grants two."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "granted", lambda: 2)
    return replace(opening.open_run_model(served(tmp_path / "run", "class")).ensemble, product=LEAST)


def test_each_core_has_rows_of_its_own(ensemble, monkeypatch):
    assert crew(ensemble, 6, 64) == Crew(2, 3, 1)
    assert crew(ensemble, 500, 64) == Crew(2, 32, 1), "no more rows at once than one alone would take"
    monkeypatch.setattr(threads, "granted", lambda: 6)
    assert crew(replace(ensemble, product=2.5e8), 2, 64) == Crew(2, 1, 2), (
        "cores that are left share products"
    )


def test_one_alone_has_what_does_not_pay_or_does_not_go(ensemble, monkeypatch):
    assert crew(replace(ensemble, product=LEAST / 10), 6, 64) == Crew(1, 64, 1), "too little to do"
    assert crew(replace(ensemble, product=1e8), 3, 64) == Crew(1, 64, 2), "two rows here and one there"
    assert crew(replace(ensemble, product=1e6), 3, 64) == Crew(2, 2, 1), "uneven, but cores cannot share"
    assert crew(replace(ensemble, product=None), 6, 64) == Crew(1, 64)
    assert crew(replace(ensemble, product=LEAST / 2), 8, 64, among=8) == Crew(1, 64, 1), "one row for each"
    assert crew(replace(ensemble, product=LEAST / 2), 16, 64, among=8) == Crew(2, 8, 1)
    monkeypatch.setattr(threads, "granted", lambda: 1)
    assert crew(ensemble, 6, 64) == Crew(1, 64, 1)


def test_who_has_said_how_many_threads_there_are_gets_those(ensemble, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert crew(ensemble, 6, 64) == Crew(2, 3, 1)
    assert crew(replace(ensemble, product=1.0), 6, 64) == Crew(1, 64, 2)


def test_no_expert_is_asked_that_has_to_make_room(tmp_path, ensemble):
    scarce = replace(opening.open_run_model(served(tmp_path / "scarce", resident=1)).ensemble, product=LEAST)
    assert crew(scarce, 6, 64).members == 1
    assert crew(scarce, 6, 64, several=False).members == 2, "of one expert there is room for"


def test_two_are_asked_at_the_same_time_and_answers_come_in_order(ensemble):
    both = threading.Barrier(2)

    def ask(question):
        both.wait(600)
        return question, torch.is_inference_mode_enabled(), torch.get_num_threads()

    assert list(Crew(2, 1, 1).ask(ask, "abcdefgh")) == [(letter, True, 1) for letter in "abcdefgh"]


def test_few_answers_are_held(ensemble):
    asked = []

    def questions():
        for number in range(20):
            asked.append(number)
            yield number

    answers = Crew(2, 1, 1).ask(lambda number: number, questions())
    assert next(answers) == 0
    assert len(asked) == 5
    assert list(answers) == list(range(1, 20))


def test_batches_of_lone_experts_have_a_core_each(ensemble, tmp_path):
    assert followers(ensemble, [3, 1, 2, 1]) == Crew(2, 0, 1)
    assert followers(ensemble, [3, 1, 2]).members == 1, "cores would wait for each other at the end"
    assert followers(replace(ensemble, product=LEAST / 2), [1, 1, 1, 1]).members == 1, "too little to do"
    assert followers(replace(ensemble, product=None), [3, 1, 2, 1]).members == 1
    scarce = replace(opening.open_run_model(served(tmp_path / "scarce", resident=1)).ensemble, product=LEAST)
    assert followers(scarce, [3, 1, 2, 1]).members == 1, "experts would push each other out"


def one_a_batch(ensemble: Ensemble, experts: Sequence[object]) -> tuple[Sampler, dict[str, object]]:
    """A sampler, and a request for eight samples by the two experts in turn, one at a time: eight batches."""
    two = replace(ensemble, experts=experts, priors=torch.ones(2) / 2, router=None, by_class=None, weak=None)
    how = {"num": 8, "steps": 3, "batch": 1, "strategy": "oracle", "cluster": [0, 1] * 4}
    return Sampler(two), how


def test_two_batches_are_followed_at_the_same_time(ensemble):
    """Experts that wait for each other: one after the other they would wait for ever."""
    both = threading.Barrier(2)

    def expert(x_t, t, condition):
        both.wait(600)
        assert torch.get_num_threads() == 1
        return x_t

    sampler, how = one_a_batch(ensemble, [expert, expert])
    seen: list[tuple[int, int]] = []
    assert ENOUGH * 2 <= 8
    traced = sampler.trace(**how, progress=lambda done, num: seen.append((done, num)))
    assert seen == sorted(seen), "what is told never goes backwards"
    assert seen[-1] == (8, 8)
    assert len(seen) == 8 * 3
    assert torch.equal(traced.x_0[3], sampler.sample(**{**how, "num": 4, "cluster": [0, 1] * 2})[3])


def test_whoever_waits_no_more_leaves_nobody_at_work(ensemble):
    """Of the batches that are under way when a person interrupts, none goes on beyond its next step."""
    asked, stopped = [], threading.Event()

    def expert(x_t, t, condition):
        asked.append(stopped.is_set())
        return x_t

    def interrupt(done: int, num: int) -> None:
        stopped.set()
        raise KeyboardInterrupt

    sampler, how = one_a_batch(ensemble, [expert, expert])
    with pytest.raises(KeyboardInterrupt):
        sampler.sample(**{**how, "steps": 1000}, progress=interrupt)
    sampler.sample(**{**how, "steps": 1})  # by the same threads, after all that was under way
    assert len(asked) < 30


@pytest.mark.parametrize("strategy", ["full", "top-1", "ancestral"])
def test_samples_are_the_same(ensemble, tmp_path, monkeypatch, strategy):
    sampler = replace(opening.open_run_model(served(tmp_path / "again", "class")), ensemble=ensemble)
    results, members = [], []
    asking = Crew.ask

    def ask(self, *question):
        members.append(self.members)
        return asking(self, *question)

    monkeypatch.setattr(Crew, "ask", ask)
    for granted in (1, 2):
        monkeypatch.setattr(threads, "granted", lambda granted=granted: granted)
        results.append(sampler.sample(num=6, steps=3, strategy=strategy, guidance=1.5))
    assert set(members) == {1, 2}
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_rows_of_many_requests_are_the_same(ensemble, tmp_path, monkeypatch):
    sampler = opening.open_run_model(served(tmp_path / "again", "class"))
    request = sampler.request(num=6, steps=3, strategy="full", guidance=1.5)
    results = []
    for granted in (1, 2):
        monkeypatch.setattr(threads, "granted", lambda granted=granted: granted)
        rows: Rows[str] = Rows(ensemble)
        rows.join(started(ensemble, "mine", request, "full", range(6)))
        for _ in range(3):
            rows.step()
        results.append(rows.x(range(6)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_a_flow_map_is_asked_about_its_rows_at_once(ensemble):
    def average(x_t, t, condition, r):
        return x_t * (t - r).view(-1, 1, 1, 1) + condition.view(-1, 1, 1, 1)

    mapped = replace(ensemble, experts=[average], maps=True)
    x_t, t, r = torch.randn(5, *ensemble.shape), torch.rand(5), torch.rand(5)
    told = torch.arange(5)
    expected = average(x_t, t, conditions.take(told, slice(None)), r)
    pieces = [slice(0, 3), slice(3, 5)]
    assert torch.equal(mapped.average(x_t, t, r, told, pieces, Crew(2, 3, 1).ask), expected)

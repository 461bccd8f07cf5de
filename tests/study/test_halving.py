"""Successive halving against an enumeration: who is left, what it costs, and that the best is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.study import halving


def by_value(candidates, samples):
    return [float(candidate) for candidate in candidates]


def test_the_last_round_has_the_whole_budget():
    assert halving.rungs(8000, 3) == [2000, 4000, 8000]
    assert halving.rungs(8000, 1) == [8000]
    assert halving.rungs(2, 3) == [1, 1, 2], "nobody is trained on nothing"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20, unique=True), st.integers(1, 6))
def test_where_scores_do_not_depend_on_samples_the_best_is_found(candidates, count):
    best, history = halving.search(candidates, 6400, count, by_value)
    assert best == min(candidates)
    left = len(candidates)
    for rung in history:
        assert len(rung.candidates) == left
        left = -(-left // 2)


def test_every_round_costs_about_the_same():
    _, history = halving.search(range(8), 8000, 3, by_value)
    assert [len(rung.candidates) * rung.samples for rung in history] == [16000, 16000, 16000]


def test_who_is_ahead_only_early_is_found_out():
    """The first is best with few samples, the second with many; both pass the first round."""
    scores = {"quick": {1000: 1.0, 2000: 5.0}, "slow": {1000: 2.0, 2000: 3.0}, "bad": {1000: 9.0}}

    def told(candidates, samples):
        return [scores[candidate][samples] for candidate in candidates]

    best, history = halving.search(["bad", "quick", "slow"], 2000, 2, told)
    assert best == "slow"
    assert history[1].candidates == ("quick", "slow")


def test_one_candidate_is_not_tried():
    def never(candidates, samples):
        pytest.fail("there is nothing to choose")

    assert halving.search(["only"], 1000, 3, never) == ("only", [])


def test_of_equal_ones_the_first_is_taken():
    assert halving.Rung(1, ("a", "b", "c"), (2.0, 1.0, 1.0)).best(2) == ("b", "c")


def test_who_stands_is_in_every_round():
    scores = {"late": {1000: 9.0, 2000: 1.0}, "quick": {1000: 1.0, 2000: 5.0}, "slow": {1000: 2.0, 2000: 3.0}}

    def told(candidates, samples):
        return [scores[candidate][samples] for candidate in candidates]

    everybody = ["late", "quick", "slow"]
    assert halving.search(everybody, 2000, 2, told)[0] == "slow"
    best, history = halving.search(everybody, 2000, 2, told, ["late"])
    assert best == "late"
    assert history[1].candidates == ("quick", "slow", "late")
    again, history = halving.search(everybody, 2000, 2, told, ["quick"])
    assert (again, history[1].candidates) == ("slow", ("quick", "slow")), "nobody is there twice"

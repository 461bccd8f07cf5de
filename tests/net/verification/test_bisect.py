"""Disputes over chains, held to a search through all of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.net.verification import bisect
from atoll.net.verification.bisect import Dispute, NoDispute


@st.composite
def chains(draw):
    """Two chains with a common beginning and different ends, in between whatever somebody made up."""
    length = draw(st.integers(2, 200))
    truth = [f"t{number}" for number in range(length)]
    kept = draw(st.integers(0, 2**length - 1))
    other = [f"t{n}" if kept >> n & 1 else f"x{n}" for n in range(length)]
    other[0], other[-1] = truth[0], "x"
    return truth, other


@given(chains())
def test_an_interval_is_found_that_both_begin_alike_and_end_apart(both):
    worker, auditor = both
    dispute = bisect.parting(worker, auditor)
    assert dispute.high == dispute.low + 1
    assert worker[dispute.low] == auditor[dispute.low]
    assert worker[dispute.high] != auditor[dispute.high]


@given(chains())
def test_few_questions_are_enough(both):
    worker, auditor = both
    dispute, questions = Dispute(0, len(worker) - 1), 0
    while not dispute.settled:
        assert dispute.low < dispute.question < dispute.high
        dispute = dispute.answered(worker[dispute.question] == auditor[dispute.question])
        questions += 1
    assert questions <= math.ceil(math.log2(len(worker) - 1)) if len(worker) > 2 else questions == 0
    assert dispute == bisect.parting(worker, auditor)


@given(st.integers(2, 60), st.data())
def test_a_judge_who_replays_finds_the_one_who_left_the_truth(length, data):
    """States here are numbers, a step adds one: whoever jumps somewhere cannot hide it from a replay."""
    truth = [str(number) for number in range(length)]
    jump = data.draw(st.integers(1, length - 1))
    liar = truth[:jump] + [f"{number}'" for number in range(jump, length)]

    def replay(low: int) -> str:
        assert liar[low] == truth[low]
        return str(int(truth[low]) + 1)

    assert bisect.settled(liar, truth, replay) == "worker"
    assert bisect.settled(truth, liar, replay) == "auditor"


def test_a_judge_of_another_kind_settles_nothing():
    assert bisect.wrong_side("a", "b", "c") == "both"


@pytest.mark.parametrize(
    ("worker", "auditor", "words"),
    [
        (["a", "b"], ["a", "b", "c"], "different lengths"),
        (["a"], ["a"], "different lengths"),
        (["a", "b"], ["x", "c"], "different states"),
        (["a", "b"], ["a", "b"], "nothing to settle"),
    ],
)
def test_what_is_no_dispute(worker, auditor, words):
    with pytest.raises(NoDispute, match=words):
        bisect.parting(worker, auditor)

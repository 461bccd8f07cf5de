"""Requests that fail, by a clock that nobody waits for."""

import pytest

from atoll.errors import Interrupted, StorageError
from atoll.storage.patience import Fault, Patience


@pytest.fixture
def patience(clock, events, monkeypatch):
    monkeypatch.setattr("random.uniform", lambda low, high: 1.0)
    return Patience("s3://bucket", 50, lambda kind, **facts: events.append((kind, facts)), clock)


def failing(times, answer="yes"):
    left = [Fault("HTTP 503")] * times

    def request():
        if left:
            raise left.pop()
        return answer

    return request


def test_what_succeeds_is_asked_once(patience, clock, events):
    assert patience("get", "x", failing(0)) == "yes"
    assert (clock.naps, events) == ([], [])


def test_every_fault_is_an_event(patience, events):
    assert patience("get", "x", failing(2)) == "yes"
    facts = {"operation": "get", "name": "x", "problem": "HTTP 503"}
    assert events == [("store_fault", {**facts, "tries": tries}) for tries in (1, 2)]


def test_waits_grow_and_patience_ends(patience, clock):
    """Each about twice the one before, up to the longest; a store that is down is not besieged."""
    with pytest.raises(Interrupted, match=r"does not answer \(HTTP 503\)"):
        patience("get", "x", failing(1000))
    assert clock.naps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10])


def test_a_refusal_is_not_argued_with(patience, clock):
    def refuse():
        raise StorageError("no")

    with pytest.raises(StorageError):
        patience("get", "x", refuse)
    assert clock.naps == []

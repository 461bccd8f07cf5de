"""A key that asks too often waits; nobody else does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.net import pacing
from atoll.net.pacing import Pace, TooMany


def taken(pace, key, now, times):
    count = 0
    for _ in range(times):
        try:
            pace.check(key, now)
            count += 1
        except TooMany as error:
            assert 0 < error.seconds <= 1 / pace.rate
    return count


def test_a_burst_and_then_so_many_a_second():
    pace = Pace(rate=2.0, burst=10.0)
    assert taken(pace, "a", 0.0, 50) == 10
    assert taken(pace, "b", 0.0, 50) == 10, "each has its own"
    assert taken(pace, "a", 3.0, 50) == 6
    assert taken(pace, "a", 1e6, 50) == 10, "never more than the burst"


@given(st.lists(st.floats(0.0, 5.0), max_size=60))
def test_never_more_than_rate_and_burst_allow(waits):
    pace, now, total = Pace(rate=3.0, burst=4.0), 0.0, 0
    for wait in waits:
        now += wait
        total += taken(pace, "a", now, 3)
        assert total <= 4.0 + 3.0 * now + 1e-6


def test_what_it_remembers_is_bounded(monkeypatch):
    monkeypatch.setattr(pacing, "MOST", 10)
    pace = Pace(rate=1.0, burst=2.0)
    for number in range(100):
        pace.check(str(number), 0.0)
    assert len(pace._left) <= 10
    pace = Pace(rate=1.0, burst=2.0)
    assert taken(pace, "busy", 0.0, 5) == 2
    for number in range(9):
        pace.check(f"old {number}", 0.0)
    pace.check("busy", 1.0)
    pace.check("new", 2.9)
    with pytest.raises(TooMany):
        pace.check("busy", 1.05)

import logging
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli import output
from atoll.cli.output import Lines, clock_time, named


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_line_has_count_rate_and_time_left(clock):
    lines = Lines(clock)
    assert lines.line() is None
    lines.report("samples", 0, 1000)
    clock.now += 10
    lines.report("samples", 200, 1000)
    assert lines.line() == "samples: 200 of 1,000, 20/s, 0:00:40 left"
    clock.now += 10  # nothing was reported meanwhile: the rate falls, the time left grows
    assert lines.line() == "samples: 200 of 1,000, 10/s, 0:01:20 left"


def test_what_an_earlier_call_did_is_not_counted_as_speed(clock):
    lines = Lines(clock)
    lines.report("samples", 900, 1000)
    clock.now += 10
    lines.report("samples", 950, 1000)
    assert lines.line() == "samples: 950 of 1,000, 5/s, 0:00:10 left"


def test_without_a_total_there_is_no_time_left(clock):
    lines = Lines(clock)
    lines.report("samples", 0, 0)
    clock.now += 2
    lines.report("samples", 50, 0)
    assert lines.line() == "samples: 50, 25/s"


def test_before_the_first_is_done_the_time_so_far_is_told(clock):
    lines = Lines(clock)
    lines.report("parts", 0, 7)
    clock.now += 65
    assert lines.line() == "parts: 0 of 7, 0:01:05 so far"


def test_another_thing_is_counted_from_its_own_beginning(clock):
    lines = Lines(clock)
    lines.report("parts", 0, 7)
    clock.now += 100
    lines.report("units", 0, 4)
    clock.now += 10
    lines.report("units", 1, 4)
    assert lines.line() == "units: 1 of 4, 0.1/s, 0:00:30 left"


def test_lines_come_while_somebody_is_busy(clock, caplog):
    """Nothing is reported after the first time, and lines are logged all the same."""
    caplog.set_level(logging.INFO)
    spoken = threading.Event()

    class Known(Lines):
        def line(self):
            if caplog.records:
                spoken.set()
            return "samples: 1 of 2"

    with output.speaking(Known(clock), every=0.001):
        assert spoken.wait(60)
    assert caplog.records[0].getMessage() == "samples: 1 of 2"


def test_off_a_terminal_there_are_lines_and_in_json_there_is_nothing():
    with output.bar(quiet=True) as report:
        assert report is None
    with output.bar(quiet=False) as report:
        assert report is not None
        report("samples", 1, 2)


def test_named():
    seen = []
    one = named(lambda *facts: seen.append(facts), "steps")
    assert one is not None
    one(3, 4)
    assert seen == [("steps", 3, 4)]
    assert named(None, "steps") is None


@given(st.integers(0, 10**6))
def test_times_can_be_read_again(seconds):
    found = re.fullmatch(r"(\d+):(\d\d):(\d\d)", clock_time(seconds))
    assert found
    hours, minutes, rest = map(int, found.groups())
    assert hours * 3600 + minutes * 60 + rest == seconds
    assert minutes < 60
    assert rest < 60

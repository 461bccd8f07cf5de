import json
import logging
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli import output
from atoll.cli.output import Lines, announced, named
from atoll.launch.remaining import clock_time


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.mark.parametrize(
    ("reports", "line"),
    [
        ([], None),
        ([(0, "samples", 0, 1000), (10, "samples", 200, 1000)], "samples: 200 of 1,000, 20/s, 0:00:40 left"),
        # what an earlier call did is not counted as speed
        ([(0, "samples", 900, 1000), (10, "samples", 950, 1000)], "samples: 950 of 1,000, 5/s, 0:00:10 left"),
        ([(0, "samples", 0, 0), (2, "samples", 50, 0)], "samples: 50, 25/s"),
        # another thing is counted from its own beginning
        (
            [(0, "parts", 0, 7), (100, "units", 0, 4), (110, "units", 1, 4)],
            "units: 1 of 4, 0.1/s, 0:00:30 left",
        ),
    ],
    ids=["nothing", "rate and time left", "resumed", "without a total", "another thing"],
)
def test_a_line_has_count_rate_and_time_left(clock, reports, line):
    lines = Lines(clock)
    for moment, *report in reports:
        clock.now = moment
        lines.report(*report)
    assert lines.line() == line


def test_time_goes_on_where_nothing_is_reported(clock):
    """The rate falls and the time left grows; before the first is done, the time so far is told."""
    lines = Lines(clock)
    lines.report("parts", 0, 7)
    clock.now += 65
    assert lines.line() == "parts: 0 of 7, 0:01:05 so far"
    lines.report("parts", 1, 7)
    assert lines.line() == "parts: 1 of 7, 0.0154/s, 0:06:30 left"
    clock.now += 65
    assert lines.line() == "parts: 1 of 7, 0.00769/s, 0:13:00 left"


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
        assert spoken.wait(600)
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


def test_where_a_server_is_to_be_found(capsys):
    announced(False, "runs/quick", "Serving")("http://127.0.0.1:8000")
    assert capsys.readouterr().out == "Serving runs/quick at http://127.0.0.1:8000 (Ctrl-C stops)\n"
    announced(True, "runs/quick", "Serving")("http://127.0.0.1:8000")
    assert json.loads(capsys.readouterr().out) == {"address": "http://127.0.0.1:8000", "run": "runs/quick"}
    announced(False, Path("s3://bucket/quick"), "Watching")("http://127.0.0.1:8001")
    assert "Watching s3://bucket/quick at" in capsys.readouterr().out, "as a path it has lost a slash"

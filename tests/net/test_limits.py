"""When a machine works, and with how much of itself."""

import os
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.net import limits
from atoll.net.limits import Hours, Limits


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22-8", [22 * 60, 0, 7 * 60 + 59], [8 * 60, 21 * 60 + 59]),
        ("8:30-17", [8 * 60 + 30, 16 * 60 + 59], [8 * 60 + 29, 17 * 60]),
        ("0-24", [0, 1439], []),
    ],
)
def test_hours_may_go_over_midnight(text, inside, outside):
    hours = Hours.parse(text)
    assert all(hours.holds(minute) for minute in inside)
    assert not any(hours.holds(minute) for minute in outside)


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 1439))
def test_waiting_leads_to_the_first_minute_inside(start, stop, minute):
    """By walking: the answer of the formula is what counting minute by minute finds."""
    if start == stop:
        return
    hours = Hours(start, stop)
    assert hours.wait(minute) == next(n for n in range(1441) if hours.holds((minute + n) % 1440))
    if hours.holds(minute):
        assert hours.left(minute) == next(n for n in range(1441) if not hours.holds((minute + n) % 1440))


@pytest.mark.parametrize("text", ["", "22", "22-22", "25-8", "8-8:60", "a-b", "-1-8", "8:99-10"])
def test_what_is_no_time_of_the_day_is_refused(text):
    with pytest.raises(ConfigError, match="--hours"):
        Hours.parse(text)


def test_reasons_to_wait(monkeypatch):
    at_noon = datetime(2030, 1, 1, 12, 0)
    assert Limits().reason_to_wait(at_noon) == ""
    assert "in 10 h 0 min" in Limits(Hours.parse("22-8")).reason_to_wait(at_noon)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 0.0, 0.0))
    assert "in use (2.0 cores busy)" in Limits(idle=True).reason_to_wait(at_noon)
    assert Limits(idle=True).reason_to_wait(at_noon, own_load=2.0) == "", "our own job is not somebody else"


def test_a_gpu_that_others_use(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 3\necho 95\n")
    program.chmod(0o755)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert not limits.gpu_in_use()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert limits.gpu_in_use()
    assert "GPU is in use" in Limits(idle=True).reason_to_wait(datetime(2030, 1, 1))


def test_cores_gpus_and_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    variables = Limits(gpus=2, cpus=1).variables()
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["OMP_NUM_THREADS"]) == ("0,1", "1")
    assert Limits(gpus=0).variables()["CUDA_VISIBLE_DEVICES"] == ""
    assert Limits(cpus=10_000).cores < 10_000
    assert Limits(disk=2.5).room(tmp_path, 10) == 2_500_000_000
    assert Limits().room(tmp_path, 1000) == 900

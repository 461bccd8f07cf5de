"""What a machine says of itself: measured once, and anew where something has changed."""

import pytest

from atoll import threads
from atoll.net import measuring
from atoll.net.limits import Limits


@pytest.fixture
def counted(monkeypatch):
    calls: list[dict[str, str]] = []
    numerics = {"device": "cpu", "threads": 1}

    def measure(settings, seconds):
        calls.append(settings)
        return {"speed": 1e9, "memory": 8e9, "gpu": False, "numerics": numerics}

    monkeypatch.setattr(measuring, "_measure", measure)
    return calls


def test_measured_once_a_week_and_for_other_limits(counted, tmp_path):
    ask = lambda limits, now: measuring.capabilities(tmp_path, limits, now)  # noqa: E731
    assert ask(Limits(cpus=1), 1e9).speed == 1e9
    assert ask(Limits(cpus=1), 1e9 + 100).memory == 8e9
    assert len(counted) == 1
    ask(Limits(cpus=1), 1e9 + measuring.WEEK)
    ask(Limits(cpus=1, gpus=0), 1e9 + measuring.WEEK)
    assert len(counted) in (2, 3)  # without GPUs the last changes nothing
    (tmp_path / "measured.json").write_text("{")
    ask(Limits(cpus=1, gpus=0), 1e9 + measuring.WEEK)
    assert len(counted) in (3, 4), "a damaged file is measured anew"


def test_how_threads_wait_is_no_reason_to_measure_again(counted, tmp_path, monkeypatch):
    """Every command of ours settles that for itself, so that it was never the same twice."""
    for name in threads.WAITING:
        monkeypatch.delenv(name, raising=False)
    measuring.capabilities(tmp_path, Limits(cpus=1), 1e9)
    threads.settle()
    measuring.capabilities(tmp_path, Limits(cpus=1), 1e9)
    assert len(counted) == 1 and "OMP_WAIT_POLICY" in counted[0]


@pytest.mark.thorough
def test_a_real_machine(tmp_path):
    able = measuring.capabilities(tmp_path, Limits(cpus=1, gpus=0), 1e9, seconds=0.05)
    assert 1e7 < able.speed < 1e14
    assert able.memory > 1e8 and able.disk > 0 and not able.gpu
    assert able.numerics.threads == 1 and able.numerics.torch and able.numerics.capability

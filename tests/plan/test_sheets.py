import time

import pytest
import torch

from atoll import threads
from atoll.errors import ConfigError
from atoll.plan import sheets
from atoll.plan.sheets import Device


def test_a_device_that_nobody_knows():
    with pytest.raises(ConfigError, match=r"plan\.gpu 'abacus' is not known; use one of .*, cpu"):
        sheets.device_named("abacus")


def test_this_cpu_is_measured(monkeypatch):
    """By a clock of our own: a product of 2 * 64^3 operations in a millisecond, on each of four cores."""
    monkeypatch.setattr(threads, "cores", lambda: 4)
    ticks = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) * 1e-3)
    monkeypatch.setenv("ATOLL_CPU_BFLOAT16", "0")
    before = torch.get_num_threads()
    device = sheets.this_cpu(2, size=64)
    assert device.teraflops == pytest.approx(4 * 2 * 64**3 / 1e-3 / 1e12)
    assert (device.half, device.at_once, device.cores) == (False, 2, 4)
    assert device.gigabytes > 0.1
    assert torch.get_num_threads() == before


def test_no_more_jobs_at_once_than_cores(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 2)
    assert sheets.device_named("cpu", 8).at_once == 2
    assert sheets.device_named("cpu", 1).at_once == 1


def test_the_rate_of_a_job():
    gpu = Device(80, 300)
    assert gpu.rate(1.0) == 300e12 * gpu.utilisation
    cpu = Device(16, 0.8, utilisation=0.5, at_once=2, cores=8)
    assert cpu.rate(1.0) == pytest.approx(0.05e12), "a small product has one thread"
    assert cpu.rate(1e12) == pytest.approx(0.2e12), "a large one half of the cores"

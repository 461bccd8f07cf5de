import os

import pytest

from atoll import doctor, threads
from atoll.launch import machine


def test_it_names_what_decides():
    found = doctor.examine()
    assert list(found)[:3] == ["atoll", "python", "torch"]
    assert int(found["cores"].split()[0]) >= 1
    assert found["device"].startswith(("cpu", "cuda", "mps"))


def test_a_missing_extra_is_named():
    assert doctor._extra(["json", "no_such_module_at_all"]) == "missing no_such_module_at_all"
    assert doctor._extra(["json"]) == "installed"


@pytest.fixture
def box(monkeypatch):
    """Eight cores of sixteen, a quota, and a user's variables."""

    def make(quota=None, **variables):
        for name in (*threads.COUNTS, *threads.WAITING):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "cpu_count", lambda: 16)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
        monkeypatch.setattr(threads, "quota", lambda: quota)
        monkeypatch.setattr(machine, "visible_gpus", lambda: ())

    return make


def test_it_says_why_there_are_fewer_cores(box):
    box()
    assert doctor._cores() == "8 (affinity allows 8 of 16)"
    box(quota=2.5)
    assert doctor._cores() == "2 (affinity allows 8 of 16; cgroup grants the time of 2.5)"


def test_it_says_what_jobs_would_get(box):
    box()
    assert doctor._threads() == (
        "1 for a small network, 8 for a large one, 8 jobs at once (no OMP variable set)"
    )
    box(OMP_NUM_THREADS="4", GOMP_SPINCOUNT="9")
    assert doctor._threads() == (
        "4 for a small network, 4 for a large one, 2 jobs at once (OMP_NUM_THREADS=4, GOMP_SPINCOUNT=9)"
    )

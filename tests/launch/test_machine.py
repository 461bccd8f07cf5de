import subprocess

import pytest

from atoll import threads
from atoll.config import LaunchConfig
from atoll.launch import machine
from atoll.launch.machine import Share

LAPTOP = "GPU 0: NVIDIA GeForce RTX 4090 Laptop GPU (UUID: GPU-3f2a9c1e-0000-1111-2222-333344445555)\n"
SERVER = "".join(f"GPU {index}: NVIDIA A100-SXM4-80GB (UUID: GPU-{index})\n" for index in range(8))
SLICED = (
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n"
    "  MIG 3g.20gb     Device  0: (UUID: MIG-one)\n"
    "  MIG 3g.20gb     Device  1: (UUID: MIG-two)\n"
    "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)\n"
)


@pytest.mark.parametrize(
    ("listing", "names"),
    [
        (LAPTOP, ("0",)),
        (SERVER, tuple("01234567")),
        (SLICED, ("MIG-one", "MIG-two", "1")),
        ("", ()),
        ("No devices found.\n", ()),
    ],
)
def test_every_gpu_is_counted_once(listing, names):
    assert machine.gpu_names(listing) == names


@pytest.mark.parametrize(
    ("visible", "names"),
    [("4,6", ("4", "6")), ("", ()), ("-1", ()), ("0,-1,1", ("0",)), ("GPU-a, GPU-b", ("GPU-a", "GPU-b"))],
)
def test_what_cuda_may_see_wins(monkeypatch, visible, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.visible_gpus() == names


def test_nvidia_smi_is_asked_once(monkeypatch):
    """Jobs are looked at five times a second, and it takes tenths of one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    asked = []

    def answer(*command, **_):
        asked.append(command)
        return subprocess.CompletedProcess([], 0, stdout=LAPTOP)

    monkeypatch.setattr(subprocess, "run", answer)
    machine._listing.cache_clear()
    try:
        assert [machine.share(8, LaunchConfig()).gpus for _ in range(3)] == [("0",)] * 3
    finally:
        machine._listing.cache_clear()
    assert len(asked) == 1


@pytest.fixture
def box(monkeypatch):
    """A machine with so many cores and GPUs, and a user who has said nothing."""

    def make(cores, gpus=0):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(threads, "cores", lambda: cores)
        monkeypatch.setattr(machine, "visible_gpus", lambda: tuple(str(index) for index in range(gpus)))

    return make


def test_cores_go_to_jobs_first_and_what_is_left_to_large_networks(box):
    box(8)
    assert machine.share(100, LaunchConfig(), useful=8) == Share(8, 1)
    assert machine.share(4, LaunchConfig(), useful=8) == Share(4, 2)
    assert machine.share(4, LaunchConfig(), useful=1) == Share(4, 1)
    assert machine.share(1, LaunchConfig(), useful=3) == Share(1, 3)
    assert machine.share(4, LaunchConfig(at_once=1), useful=20) == Share(1, 8)


def test_what_is_said_of_threads_wins_and_fewer_jobs_run(box, monkeypatch):
    box(8)
    assert machine.share(8, LaunchConfig(threads=4)) == Share(2, 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert machine.share(8, LaunchConfig(), useful=1) == Share(4, 2)
    assert machine.share(8, LaunchConfig(threads=1), useful=1) == Share(8, 1)
    assert machine.share(8, LaunchConfig(threads=16)) == Share(1, 16)


def test_gpus_are_divided_among_jobs(box):
    box(16, gpus=8)
    assert machine.share(3, LaunchConfig()).at_once == 3
    one = machine.share(20, LaunchConfig())
    assert (one.at_once, one.threads) == (8, 2)
    assert [one.variables(slot)["CUDA_VISIBLE_DEVICES"] for slot in (0, 7)] == ["0", "7"]
    four = machine.share(20, LaunchConfig(gpus=4))
    assert four.at_once == 2
    assert [four.variables(slot)["CUDA_VISIBLE_DEVICES"] for slot in (0, 1)] == ["0,1,2,3", "4,5,6,7"]
    assert machine.share(20, LaunchConfig(gpus=64)).variables(0)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_the_environment_of_a_job(box, monkeypatch):
    box(4)
    for name in threads.WAITING:
        monkeypatch.delenv(name, raising=False)
    made = machine.share(2, LaunchConfig(), useful=9).variables(1)
    assert made == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", **threads.WAITING}
    monkeypatch.setenv("KMP_BLOCKTIME", "5")
    assert machine.share(2, LaunchConfig()).variables(0) == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

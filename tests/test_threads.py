import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import threads


def group(tmp_path, record, **files):
    """A tree of cgroups and what a process says of its own."""
    for name, text in files.items():
        path = tmp_path / "cgroup" / name.replace("__", "/").replace("_us", "%us").replace("_", ".")
        path = path.with_name(path.name.replace("%us", "_us").replace("cfs.", "cfs_"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "record").write_text(record)
    return threads.quota(tmp_path / "cgroup", tmp_path / "record")


def test_a_quota_of_cgroup_v2(tmp_path):
    assert group(tmp_path, "0::/pod/job\n", pod__job__cpu_max="150000 100000\n") == 1.5


def test_the_tightest_group_above_counts(tmp_path):
    files = {"pod__job__cpu_max": "max 100000\n", "pod__cpu_max": "300000 100000\n", "cpu_max": "max\n"}
    assert group(tmp_path, "0::/pod/job\n", **files) == 3.0


def test_a_quota_of_cgroup_v1_seen_from_inside_a_container(tmp_path):
    """The path is the host's, the mounted folder the container's own."""
    files = {"cpu__cpu_cfs_quota_us": "200000\n", "cpu__cpu_cfs_period_us": "100000\n"}
    assert group(tmp_path, "5:memory:/x\n4:cpu:/docker/abc\n", **files) == 2.0


@pytest.mark.parametrize("text", ["", "max 100000", "-1", "nonsense", "100000 0", "100000 x"])
def test_no_limit(tmp_path, text):
    assert group(tmp_path, "0::/\n", cpu_max=text) is None


def test_no_cgroups_at_all(tmp_path):
    assert threads.quota(tmp_path, tmp_path / "missing") is None


@given(st.text(max_size=80))
def test_any_record_is_read(tmp_path_factory, text):
    record = tmp_path_factory.mktemp("group") / "record"
    record.write_text(text, encoding="utf-8")
    assert threads.quota(record.parent, record) is None


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"), [(8, None, 8), (8, 2.5, 2), (2, 16.0, 2), (4, 0.25, 1)]
)
def test_cores_are_those_of_affinity_and_quota(monkeypatch, affinity, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    monkeypatch.setattr(threads, "quota", lambda: quota)
    assert threads.cores() == cores


@pytest.mark.parametrize(
    ("text", "count"),
    [("4", 4), ("4,2", 4), (" 3 ", 3), ("", None), ("many", None), ("0", None), (None, None)],
)
def test_what_the_user_asked_for(text, count):
    assert threads.chosen({} if text is None else {"OMP_NUM_THREADS": text}) == count


def test_threads_that_pay():
    rows = 8 * 196  # the demo's batch of tokens
    assert threads.useful(rows * 128 * 128) == 1
    assert threads.useful(rows * 384 * 384) == 2
    assert threads.useful(64 * 256 * 1152 * 1152) == 217


def test_what_the_user_says_of_waiting_stays():
    assert threads.waiting({}) == threads.WAITING
    assert threads.waiting({"GOMP_SPINCOUNT": "1000"}) == {}
    environment = {"OMP_WAIT_POLICY": "ACTIVE"}
    threads.settle(environment)
    assert environment == {"OMP_WAIT_POLICY": "ACTIVE"}


def test_the_library_that_torch_brings_understands_us():
    """OMP_DISPLAY_ENV makes it say what it took from the environment, as soon as it is loaded."""
    code = "import torch; torch.ones(300, 300) @ torch.ones(300, 300)"
    if library := _threads_of_torch():  # alone: the rest of torch takes seconds
        code = f"import ctypes; ctypes.CDLL({library!r})"
    environment = {**os.environ, **threads.variables(2), "OMP_DISPLAY_ENV": "VERBOSE"}
    shown = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in shown
    assert "OMP_NUM_THREADS = '2'" in shown
    if sys.platform == "linux":
        assert "GOMP_SPINCOUNT = '300'" in shown


def _threads_of_torch():
    """The library by which torch starts threads in this process, where that can be seen."""
    place = Path(torch.__file__).parent / "lib"
    maps = Path("/proc/self/maps")
    used = set(re.findall(rf"{place}/libg?omp\S*", maps.read_text())) if maps.is_file() else set()
    return used.pop() if len(used) == 1 else None


@pytest.fixture
def three(monkeypatch):
    """A process with three threads on a machine of four cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 4)
    torch.set_num_threads(3)
    yield monkeypatch
    torch.set_num_threads(1)


def test_a_small_network_has_one_thread_meanwhile(three):
    with threads.limited(1e6):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(ValueError, match="no"), threads.limited(2.5e8):
        assert torch.get_num_threads() == 2
        raise ValueError("no")
    assert torch.get_num_threads() == 3


def test_threads_are_never_more_than_there_were_or_cores(three):
    with threads.limited(1e12):
        assert torch.get_num_threads() == 3
    three.setattr(threads, "cores", lambda: 2)
    with threads.limited(1e12):
        assert torch.get_num_threads() == 2


def test_the_users_number_stays(three):
    three.setenv("OMP_NUM_THREADS", "3")
    with threads.limited(1e6):
        assert torch.get_num_threads() == 3


def test_what_is_granted(three):
    assert threads.granted() == 3
    three.setattr(threads, "cores", lambda: 2)
    assert threads.granted() == 2, "no more than cores"
    three.setenv("OMP_NUM_THREADS", "3")
    assert threads.granted() == 3, "unless somebody says so"

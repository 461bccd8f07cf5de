import platform
import resource
from pathlib import Path

import pytest
import torch

from atoll.sampling import memory

CPU = torch.device("cpu")


def experts(folder, *sizes):
    files = [folder / f"{number}.safetensors" for number in range(len(sizes))]
    for path, size in zip(files, sizes, strict=True):
        path.write_bytes(bytes(size))
    return files


def test_as_many_are_held_as_fit(tmp_path, monkeypatch):
    files = experts(tmp_path, 100, 100, 60, 100)
    for free, held in ((10_000, 4), (500, 4), (400, 3), (130, 1), (10, 1)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        assert memory.fitting(files, CPU) == held, free
    monkeypatch.setattr(memory, "free_bytes", lambda device: 260)
    assert memory.fitting(files, CPU, torch.bfloat16) == 4, "half precision takes half the memory"
    assert memory.fitting(files, CPU, torch.float32) == 2
    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    assert memory.fitting(files, CPU) == 4, "nobody can say"


def test_a_container_counts_what_is_left_of_its_limit(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2000 kB\n")
    (tmp_path / "max").write_text("1000000\n")
    (tmp_path / "current").write_text("400000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUPS", ((tmp_path / "max", tmp_path / "current"),))
    assert memory.free_bytes(CPU) == 600_000
    (tmp_path / "max").write_text("max\n")
    assert memory.free_bytes(CPU) == 2000 * 1024
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "gone")
    assert memory.free_bytes(CPU) is None


def test_a_gpu_is_asked_itself(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (123, 456))
    assert memory.free_bytes(torch.device("cuda", 0)) == 123


on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
LARGE = 2**24
"""Floats of a buffer that glibc would never keep by itself."""


def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(LARGE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@on_glibc
def test_kept_memory_is_used_again_and_given_back_at_the_end():
    with memory.kept(CPU):
        seen = [(faults(), held()) for _ in range(10)]  # other threads may give back meanwhile
        again, inside = min(count for count, _ in seen), max(size for _, size in seen)
        assert again < 1000, "buffers of 16,384 pages are asked of the kernel again and again"
    assert inside - held() > 4 * LARGE / 2


def test_a_gpu_has_an_allocator_of_its_own(monkeypatch):
    monkeypatch.setattr(memory, "keep", lambda: pytest.fail("the CPU's was changed"))
    monkeypatch.setattr(memory, "give_back", lambda: pytest.fail("the CPU's was changed"))
    with memory.kept(torch.device("cuda")):
        pass


def test_memory_is_given_back_where_a_step_fails(monkeypatch):
    given = []
    monkeypatch.setattr(memory, "give_back", lambda: given.append(True))
    with pytest.raises(RuntimeError), memory.kept(CPU):
        raise RuntimeError
    assert given == [True]

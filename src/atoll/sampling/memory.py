"""Memory of a model: how many experts fit by the size of their files, what is kept and what is given back."""

import contextlib
import ctypes
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

STORED = 4
"""Bytes of a weight on disk."""
SHARE = 0.8
"""Of what is free, for experts; the rest is for what is computed on the way."""
MEMINFO = Path("/proc/meminfo")
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and use of a container's memory, as new and old kernels tell them."""
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Parameters of mallopt (malloc.h of glibc)."""


def fitting(
    files: Sequence[Path],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    bases: Sequence[Path] = (),
) -> int:
    """How many of these experts may be held at once, at least one; all of them where nobody can say.

    `bases` are files of networks that they share, which are held besides.
    """
    free = free_bytes(device)
    largest = max((path.stat().st_size for path in files if path.is_file()), default=0)
    if free is None or not largest:
        return len(files)
    shared = sum(path.stat().st_size for path in bases if path.is_file())
    return max(1, min(len(files), int((SHARE * free * STORED / dtype.itemsize - shared) / largest)))


def free_bytes(device: torch.device) -> int | None:
    """Memory that may still be taken on a device; None if it cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    known = [_available(), *(_left(*pair) for pair in CGROUPS)]
    return min((number for number in known if number is not None), default=None)


def _available() -> int | None:
    """What Linux thinks that a new process could have."""
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _left(limit: Path, used: Path) -> int | None:
    """What is left of a container's limit, if it has one."""
    try:
        return max(0, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def keep() -> None:
    """Let the C library keep freed memory: a step asks for the same buffers again.

    By default glibc returns every large buffer to the kernel, which hands it out again page by page, each
    filled with zeros: a tenth of a small network's step. Elsewhere than on Linux this does nothing.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20)):
        library.mallopt(parameter, value)


@contextlib.contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """Keep freed memory as long as samples are drawn on a CPU, and give it back then: others may need it."""
    if device.type != "cpu":
        yield
        return
    keep()
    try:
        yield
    finally:
        give_back()


def give_back() -> None:
    """Return freed memory to the system: after a crowd, glibc keeps what its threads needed for it.

    Elsewhere than on Linux this does nothing.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)

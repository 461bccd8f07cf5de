"""How many cores this process may use, and how many threads pay.

The threads of a product meet at its end. Where another program has taken one of their cores, all wait for
the one that is late, by default spinning, and so take the cores from it: small products then run fifty times
slower rather than twice. So small networks get one thread, and those of large ones sleep while they wait.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

PAYS = 1e8
"""Multiplications of one product for each thread: milliseconds, beside which waking a thread is nothing."""
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300", "KMP_BLOCKTIME": "0"}
"""Waiting threads sleep: the standard's word, libgomp's (torch on Linux ships it), LLVM's and Intel's.
libgomp looks 300 times first, some microseconds, which wins back half of what sleeping costs."""
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    """Cores that this process may keep busy: those it may run on, and no more than a cgroup grants."""
    limit = quota()
    return allowed() if limit is None else max(1, min(allowed(), math.floor(limit)))


def allowed() -> int:
    """Cores that this process may run on (`taskset`)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota(root: Path = Path("/sys/fs/cgroup"), record: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of time that a container or a scheduler grants (cgroup v2 or v1), if it limits it."""
    try:
        groups = [line.split(":", 2) for line in record.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    limits = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if not controllers:
            limits += [_limit_v2(folder) for folder in _upwards(root, path)]
        elif "cpu" in controllers.split(","):
            for name in (controllers, "cpu"):
                limits += [_limit_v1(folder) for folder in _upwards(root / name, path)]
    return min((limit for limit in limits if limit is not None), default=None)


def _upwards(root: Path, path: str) -> list[Path]:
    """A group's folder and those above it, each of which may limit it."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _limit_v2(folder: Path) -> float | None:
    """`cpu.max`: microseconds of a period, or "max"."""
    granted, _, period = _text(folder / "cpu.max").partition(" ")
    return _ratio(granted, period or "100000")


def _limit_v1(folder: Path) -> float | None:
    """Two files; -1 is no limit."""
    return _ratio(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _ratio(granted: str, period: str) -> float | None:
    if granted.isdecimal() and period.isdecimal() and int(period):
        return int(granted) / int(period)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def chosen(environment: Mapping[str, str] = os.environ) -> int | None:
    """Threads that the user, or who started this process, has asked for in OMP_NUM_THREADS."""
    first = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else None


def useful(product: float) -> int:
    """Threads that pay in a product of so many multiplications, whatever the machine has."""
    return max(1, int(product / PAYS))


def waiting(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables by which threads sleep while they wait; none if the user has set any of them."""
    return {} if any(name in environment for name in WAITING) else dict(WAITING)


def variables(count: int) -> dict[str, str]:
    """The environment of a process of ours with so many threads."""
    return {**dict.fromkeys(COUNTS, str(count)), **waiting()}


def settle(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let the threads of this process sleep while they wait; to be called before torch is imported."""
    environment.update(waiting(environment))


def granted() -> int:
    """Threads that torch may use here: what the user or a launcher asked for, else no more than the cores."""
    import torch  # noqa: PLC0415 - who only launches jobs needs none

    count = torch.get_num_threads()
    return count if chosen() else min(count, cores())


@contextlib.contextmanager
def limited(product: float) -> Iterator[None]:
    """Meanwhile torch has as many threads as pay in a product of so many multiplications.

    Only if the user has not asked for a number: what a launcher gave a job stays as well.
    """
    import torch  # noqa: PLC0415

    before = torch.get_num_threads()
    torch.set_num_threads(before if chosen() else min(granted(), useful(product)))
    try:
        yield
    finally:
        torch.set_num_threads(before)

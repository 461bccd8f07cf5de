"""What this machine gives to each of several jobs: how many at once, threads, GPUs."""

import functools
import os
import re
import subprocess
from dataclasses import dataclass

from atoll import threads
from atoll.config import LaunchConfig

GPU_LINE, MIG_LINE = re.compile(r"GPU \d+:"), re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
"""A GPU in `nvidia-smi -L`, whose name may say GPU again, and a slice of one, which only its UUID names."""


@dataclass(frozen=True)
class Share:
    """How jobs share the machine."""

    at_once: int
    """Jobs at the same time."""
    threads: int
    """Of each job."""
    gpus: tuple[str, ...] = ()
    """The names of all GPUs."""
    gpus_per_job: int = 1

    def variables(self, slot: int) -> dict[str, str]:
        """The environment of the job in a slot, 0 to `at_once` - 1: its threads and its GPUs."""
        if not self.gpus:
            return threads.variables(self.threads)
        first = slot * self.gpus_per_job
        own = [self.gpus[index % len(self.gpus)] for index in range(first, first + self.gpus_per_job)]
        return {**threads.variables(self.threads), "CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(own))}


def share(jobs: int, config: LaunchConfig, useful: int = 1) -> Share:
    """How `jobs` share this machine, if `useful` threads pay in their products.

    Many jobs of one thread do more than few jobs of several, so cores go to jobs first; what the recipe or
    the user says of threads wins. Processes with all cores each would get in each other's way.
    """
    gpus, cores = visible_gpus(), threads.cores()
    wanted = config.threads or threads.chosen()
    per_job = min(max(1, round(config.gpus)), len(gpus)) if gpus else 1
    room = len(gpus) // per_job if gpus else max(1, cores // (wanted or 1))
    at_once = config.at_once or max(1, min(jobs, room))
    left = max(1, cores // at_once)
    return Share(at_once, wanted or (left if gpus else min(left, useful)), gpus, per_job)


def visible_gpus() -> tuple[str, ...]:
    """The NVIDIA GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes; no torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        usable = names.index("-1") if "-1" in names else len(names)  # CUDA stops at the first that is not one
        return tuple(name for name in names[:usable] if name)
    return gpu_names(_listing())


@functools.cache
def _listing() -> str:
    """What the driver lists, asked once: it takes tenths of a second, and jobs are looked at that often."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return listing.stdout if listing.returncode == 0 else ""


def gpu_names(listing: str) -> tuple[str, ...]:
    """The GPUs that `nvidia-smi -L` lists, by number; one that is cut into MIG slices, by its slices."""
    names: list[list[str]] = []
    for line in listing.splitlines():
        if GPU_LINE.match(line):
            names.append([str(len(names))])
        elif names and (slice_ := MIG_LINE.match(line)):
            names[-1] = [*(name for name in names[-1] if name.startswith("MIG-")), slice_[1]]
    return tuple(name for group in names for name in group)

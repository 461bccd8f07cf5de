"""When, and with how much of a machine, a worker works: hours, an idle machine, cores, GPUs, disk."""

import os
import re
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from atoll import threads
from atoll.errors import ConfigError
from atoll.launch import machine

BUSY = 0.5
"""Cores' worth of other programs' work from which on a machine counts as in use."""
GPU_BUSY = 20
"""Percent of a GPU that others use, from which on it counts as in use."""
_HOURS = re.compile(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?")


@dataclass(frozen=True)
class Hours:
    """A part of the day, by minutes since midnight; it may go over midnight."""

    start: int = 0
    stop: int = 24 * 60

    @classmethod
    def parse(cls, text: str) -> "Hours":
        """`22-8`, `8:30-17`."""
        match = _HOURS.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"--hours {text}: write two hours of the day, as 22-8 or 8:30-17")
        start, stop = (int(match[k]) * 60 + int(match[k + 1] or 0) for k in (1, 3))
        if start > 24 * 60 or stop > 24 * 60 or start == stop or any(int(match[k] or 0) > 59 for k in (2, 4)):
            raise ConfigError(f"--hours {text}: a day has the hours 0 to 24, and the two must differ")
        return cls(start, stop)

    def holds(self, minute: int) -> bool:
        """Whether a minute of the day is in it."""
        if self.start < self.stop:
            return self.start <= minute < self.stop
        return minute >= self.start or minute < self.stop

    def wait(self, minute: int) -> int:
        """Minutes until it begins; 0 in it."""
        return 0 if self.holds(minute) else (self.start - minute) % (24 * 60)

    def left(self, minute: int) -> int:
        """Minutes until it ends; 0 outside of it, or where it never ends."""
        whole = (self.start, self.stop) == (0, 24 * 60)
        return (self.stop - minute) % (24 * 60) if self.holds(minute) and not whole else 0


@dataclass(frozen=True)
class Limits:
    """What the owner of a machine allows."""

    hours: Hours = Hours()
    idle: bool = False
    """Only while nobody else uses the machine."""
    gpus: int | None = None
    """How many GPUs; by default all."""
    cpus: int | None = None
    """How many cores; by default all."""
    disk: float | None = None
    """Gigabytes for files of runs; by default what is free but a tenth."""
    mbit: float = 0.0
    """Megabits a second of transfers."""

    def variables(self) -> dict[str, str]:
        """The environment of a job: its cores and GPUs."""
        gpus = machine.visible_gpus()
        names = gpus if self.gpus is None else gpus[: self.gpus]
        return {**threads.variables(self.cores), "CUDA_VISIBLE_DEVICES": ",".join(names)}

    @property
    def cores(self) -> int:
        """Cores that jobs may use."""
        return max(1, min(self.cpus or threads.cores(), threads.cores()))

    def room(self, folder: Path, free: int) -> int:
        """Bytes that a folder may take, where so many are free."""
        return int(self.disk * 1e9) if self.disk is not None else int(free * 0.9)

    def reason_to_wait(self, now: datetime, own_load: float = 0.0) -> str:
        """Why there is no work just now, in a few words; nothing if there is no reason.

        `own_load` is how many cores our own jobs keep busy; 0 while there are none.
        """
        minute = now.hour * 60 + now.minute
        if not self.hours.holds(minute):
            return f"outside of --hours; it goes on in {_duration(self.hours.wait(minute))}"
        if self.idle and (load := others_load(own_load)) >= BUSY:
            return f"the machine is in use ({load:.1f} cores busy); it goes on when nobody does"
        if self.idle and not own_load and gpu_in_use():
            return "the GPU is in use; it goes on when nobody does"
        return ""


def others_load(own: float) -> float:
    """Cores that other programs keep busy, of the last minute."""
    return max(0.0, os.getloadavg()[0] - own)


def gpu_in_use() -> bool:
    """Whether somebody else uses an NVIDIA GPU of this machine."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
    except OSError:
        return False
    numbers = [int(line) for line in answer.stdout.split() if line.isdecimal()]
    return answer.returncode == 0 and any(number > GPU_BUSY for number in numbers)


def _duration(minutes: int) -> str:
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"

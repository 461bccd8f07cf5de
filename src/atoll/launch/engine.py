"""Where jobs run: one small protocol, and what implements it."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from atoll.config import LaunchConfig, did_you_mean
from atoll.errors import ConfigError
from atoll.launch.job import Job, JobStatus
from atoll.runs import Run
from atoll.runs.graph import Node, resolve


@dataclass(frozen=True)
class Place:
    """What an engine knows of the work besides its jobs."""

    folder: Path
    """Of the run; an engine may keep files of its own there."""
    launch: LaunchConfig
    run: Run | None = None
    """Where jobs are stages of a run, and that run lives in a store."""


class Engine(Protocol):
    """Runs jobs somewhere: each once, until it has ended, and none after it was asked to stop."""

    seconds: float
    """Between two looks at all jobs."""
    stopped: str
    """What becomes of jobs when whoever drives them is asked to stop."""

    def room(self, ready: int, running: int) -> int:
        """How many of the jobs that are ready can be started now."""
        ...

    def start(self, job: Job) -> None:
        """Start a job, or queue it."""
        ...

    def poll(self, status: JobStatus) -> None:
        """Note whether a started job is at work, or how it has ended."""
        ...

    def stop(self, jobs: Sequence[Job]) -> None:
        """Ask jobs to save and stop, and wait for them; or leave them where they go on by themselves."""
        ...

    def share(self, node: Node) -> None:
        """Do parts of a stage that can be cut on several machines, if there are; the rest is done here."""
        ...


ENGINES = {
    "local": "atoll.launch.local:opened",
    "ray": "atoll.launch.on_ray:opened",
    "slurm": "atoll.launch.on_slurm:opened",
}
"""What opens each of them."""


def check(name: str) -> None:
    """An error if there is no such engine."""
    if name not in ENGINES:
        raise ConfigError(f"--on {name}: {did_you_mean(name, ENGINES)}jobs can run on {', '.join(ENGINES)}")


@contextlib.contextmanager
def opened(name: str, place: Place) -> Iterator[Engine]:
    """An engine, for as long as jobs are run on it."""
    check(name)
    with resolve(ENGINES[name])(place) as engine:
        yield engine

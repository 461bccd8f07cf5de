"""One live table of all jobs on a terminal, plain lines elsewhere."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from atoll.launch.job import JobStatus

logger = logging.getLogger(__name__)
LINE_SECONDS = 15

Watch = Callable[[Sequence[JobStatus]], None]


@contextlib.contextmanager
def watching(quiet: bool) -> Iterator[Watch]:
    """Something to show jobs to, again and again."""
    if quiet:
        yield lambda jobs: None
    elif sys.stderr.isatty():
        with Live(console=Console(stderr=True), refresh_per_second=4) as live:
            yield lambda jobs: live.update(table(jobs))
    else:
        yield _Lines()


def table(jobs: Sequence[JobStatus]) -> Table:
    """Job, step, loss, samples per second, time left."""
    columns = Table("job", "state", *("step", "loss", "samples/s", "left"), box=None, header_style="dim")
    for column in columns.columns[2:]:
        column.justify = "right"
    for job in jobs:
        columns.add_row(*_row(job))
    return columns


def _row(job: JobStatus) -> tuple[str, ...]:
    last = job.progress() if job.running else {}
    if not last:
        return job.name, job.state, f"0/{job.job.steps}", "", "", ""
    left = "" if job.code is not None else _duration(job.job.steps, last, job.job.batch)
    return (
        job.name,
        job.state,
        f"{last['step']}/{job.job.steps}",
        f"{last['loss']:.4f}",
        f"{last['samples_per_second']:.0f}",
        left,
    )


def _duration(steps: int, last: dict[str, float], batch: int) -> str:
    """Time left at the present rate."""
    seconds = int((steps - last["step"]) * batch / last["samples_per_second"])
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


class _Lines:
    """Plain lines: every change of state, and now and then how far everything is."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        self.spoken = time.monotonic()

    def __call__(self, jobs: Sequence[JobStatus]) -> None:
        for job in jobs:
            now = job.state
            if now != "waiting" and self.states.get(job.name) != now:
                self.states[job.name] = now
                logger.info("%s: %s", job.name, now)
        if time.monotonic() - self.spoken >= LINE_SECONDS:
            self.spoken = time.monotonic()
            for job in jobs:
                if job.state == "training" and job.progress():
                    name, _, step, loss, rate, left = _row(job)
                    line = f"step {step}, loss {loss}, {rate} samples/s, {left} left"
                    if self.lines.get(name) != line:  # after its last step a job may have more to do
                        self.lines[name] = line
                        logger.info("%s: %s", name, line)

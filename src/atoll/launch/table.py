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
from atoll.launch.remaining import Remaining, Whole, clock_time, samples_left

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
            remaining = Remaining()
            yield lambda jobs: live.update(table(jobs, remaining.look(jobs)))
    else:
        yield Lines()


def table(jobs: Sequence[JobStatus], whole: Whole) -> Table:
    """Job, step, loss, samples per second, time left; at last the same of all jobs."""
    columns = Table("job", "state", *("step", "loss", "samples/s", "left"), box=None, header_style="dim")
    for column in columns.columns[2:]:
        column.justify = "right"
    for job in jobs:
        columns.add_row(*_row(job))
    columns.add_row("all", whole.state, "", "", *_pace(whole))
    return columns


def _pace(whole: Whole) -> tuple[str, str]:
    """The rate of all jobs and the time left, as far as they are known."""
    if whole.seconds is None or whole.done + whole.failed == whole.jobs:
        return "", ""
    return f"{whole.rate:.0f}", clock_time(whole.seconds)


def _state(job: JobStatus) -> str:
    """In a word, and where a job that is at work goes on from."""
    resumed = job.resumed and job.state == "training"
    return f"training, resumed from step {job.resumed}" if resumed else job.state


def _row(job: JobStatus) -> tuple[str, ...]:
    last = job.progress() if job.running else {}
    if not last:
        return job.name, _state(job), f"0/{job.job.steps}", "", "", ""
    left = "" if job.code is not None else clock_time(samples_left(job, last) / last["samples_per_second"])
    return (
        job.name,
        _state(job),
        f"{last['step']}/{job.job.steps}",
        f"{last['loss']:.4f}",
        f"{last['samples_per_second']:.0f}",
        left,
    )


class Lines:
    """Plain lines: every change of state, and now and then how far each job is, and all of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.states: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        self.remaining = Remaining()
        self.clock, self.spoken = clock, clock()

    def __call__(self, jobs: Sequence[JobStatus]) -> None:
        """Look at all jobs, and log what is due."""
        self._tell_news(self.states, {job.name: _state(job) for job in jobs if job.state != "waiting"})
        whole = self.remaining.look(jobs)
        if self.clock() - self.spoken >= LINE_SECONDS:
            self.spoken = self.clock()
            working = [job for job in jobs if job.state == "training" and job.progress()]
            # after its last step a job may have more to do, which is no news
            self._tell_news(self.lines, {job.name: _words(job) for job in working})
            logger.info("all: %s", _words_of_all(whole))

    @staticmethod
    def _tell_news(before: dict[str, str], now: dict[str, str]) -> None:
        for name, words in now.items():
            if before.get(name) != words:
                before[name] = words
                logger.info("%s: %s", name, words)


def _words(job: JobStatus) -> str:
    _, _, step, loss, rate, left = _row(job)
    return f"step {step}, loss {loss}, {rate} samples/s, {left} left"


def _words_of_all(whole: Whole) -> str:
    rate, left = _pace(whole)
    return f"{whole.state}, {rate} samples/s, {left} left" if left else whole.state

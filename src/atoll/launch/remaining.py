"""What is left of all jobs together: how many are done, how fast the others are, how long it will take."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from atoll.launch.job import JobStatus


class Whole(NamedTuple):
    """How far all jobs are."""

    done: int
    failed: int
    jobs: int
    rate: float
    """Samples a second of all jobs that are at work."""
    seconds: float | None
    """Left; None before any job has measured its rate."""

    @property
    def state(self) -> str:
        """How many have ended."""
        return f"{self.done} of {self.jobs} jobs done" + (f", {self.failed} failed" if self.failed else "")


@dataclass
class Remaining:
    """Looks at all jobs again and again."""

    at_once: int = 1
    """The most jobs that were seen at work at the same time; nobody knows what a cluster will give."""

    def look(self, jobs: Sequence[JobStatus]) -> Whole:
        """How far they are now."""
        lines = {job.name: job.progress() for job in jobs}
        working = [job for job in jobs if job.running and job.code is None]
        self.at_once = max(self.at_once, len(working))
        return Whole(
            sum(job.code == 0 for job in jobs),
            sum(job.code not in (0, None) for job in jobs),
            len(jobs),
            sum(lines[job.name].get("samples_per_second", 0.0) for job in working),
            seconds_left(jobs, lines, self.at_once),
        )


def seconds_left(
    jobs: Sequence[JobStatus], lines: Mapping[str, Mapping[str, Any]], at_once: int
) -> float | None:
    """Until the last job ends, if each starts as soon as it may and one of `at_once` places is free."""
    rates = {name: rate for name, line in lines.items() if (rate := line.get("samples_per_second"))}
    if not rates:
        return None
    assumed = _assumed(jobs, rates)
    left = {job.name: samples_left(job, lines[job.name]) / assumed[job.name] for job in jobs}
    ends = {job.name: left[job.name] for job in jobs if job.running and job.code is None}
    waiting = {job.name: job.job.after for job in jobs if not job.running and job.code is None}
    unfinished, now = {job.name for job in jobs if job.code != 0}, 0.0  # nothing follows one that failed
    while True:
        free = (name for name, after in waiting.items() if not after & unfinished)
        for name in list(itertools.islice(free, max(0, at_once - len(ends)))):
            ends[name] = now + left[name]
            del waiting[name]
        if not ends:
            return now
        first = min(ends, key=lambda name: ends[name])
        now = ends.pop(first)
        unfinished.discard(first)


def _assumed(jobs: Sequence[JobStatus], rates: Mapping[str, float]) -> dict[str, float]:
    """The rate of every job: its own, or the mean of its kind, or the mean of all."""
    kinds: dict[str, list[float]] = {}
    for name, rate in rates.items():
        kinds.setdefault(_kind(name), []).append(rate)
    means, mean = {kind: fmean(each) for kind, each in kinds.items()}, fmean(rates.values())
    return {job.name: rates.get(job.name) or means.get(_kind(job.name), mean) for job in jobs}


def samples_left(job: JobStatus, line: Mapping[str, Any]) -> int:
    """Of a job, after the newest line of its metrics."""
    return int(max(0, job.job.steps - line.get("step", 0)) * job.job.batch)


def _kind(name: str) -> str:
    """Experts are of one kind, whatever their number."""
    return name.rstrip("0123456789 ")


def clock_time(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"

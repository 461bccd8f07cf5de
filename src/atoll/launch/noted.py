"""Every change of a job's state as an event of its run, for whoever reads along."""

from collections.abc import Callable, Sequence
from typing import Any

from atoll.launch.job import JobStatus
from atoll.runs import Run

EVENTS = {"training": "began", "done": "done", "failed": "failed"}
"""What becomes of a job, and the event that says so."""


class Noted:
    """Is shown all jobs again and again, writes down what has changed, and shows them on."""

    def __init__(self, run: Run, watch: Callable[[Sequence[JobStatus]], None]) -> None:
        self._run, self._watch = run, watch
        self._states: dict[str, str] = {}

    def __call__(self, jobs: Sequence[JobStatus]) -> None:
        """Look at all jobs."""
        for job in jobs:
            if job.state != self._states.get(job.name) and job.state in EVENTS:
                self._run.event(EVENTS[job.state], stage=job.name, **_facts(job))
            self._states[job.name] = job.state
        self._watch(jobs)


def _facts(job: JobStatus) -> dict[str, Any]:
    if job.state == "failed":
        return {"problem": job.last_words()}
    return {"step": job.resumed} if job.resumed and job.state == "training" else {}

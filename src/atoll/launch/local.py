"""Jobs as separate processes of this machine, as many at once as it carries."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from atoll.config import LaunchConfig
from atoll.errors import EXIT_RUN_AGAIN, AtollError, Interrupted
from atoll.launch import machine, tied
from atoll.runs import read_lines

POLL_SECONDS = 0.2


@dataclass
class Job:
    """One process to be: what it is called, what it runs, and how far it is."""

    name: str
    command: Sequence[str]
    """Arguments of `atoll`."""
    folder: Path
    """Where its metrics and its log are."""
    steps: int
    batch: int
    process: "subprocess.Popen[bytes] | None" = None
    code: int | None = None
    placed: bool = False
    """Whether it is at work on another machine."""
    words: str = ""
    """The last that was heard from there."""
    slot: int = 0
    log: IO[bytes] | None = field(default=None, repr=False)

    @property
    def log_path(self) -> Path:
        """What the process said."""
        return self.folder.parent / f"{self.folder.name}.log"

    def progress(self) -> dict[str, float]:
        """The last line of its metrics."""
        lines = read_lines(self.folder / "metrics.jsonl")
        return lines[-1] if lines else {}


def run_jobs(jobs: Sequence[Job], config: LaunchConfig, watch: Callable[[Sequence[Job]], None]) -> None:
    """Run every job to its end; one that fails is reported after the others have finished."""
    share = machine.share(len(jobs), config)
    waiting, free = list(jobs), list(range(share.at_once))
    with _terminable():
        try:
            while waiting or any(job.process and job.code is None for job in jobs):
                while waiting and free:
                    _start(waiting.pop(0), free.pop(0), share)
                time.sleep(POLL_SECONDS)
                free += [job.slot for job in jobs if _has_ended(job)]
                watch(jobs)
        except BaseException:
            _stop(jobs)
            raise
    report(jobs)


def report(jobs: Sequence[Job]) -> None:
    """An error where a job has failed; a stop where jobs have saved and want to be run again."""
    failed = [job for job in jobs if job.code not in (0, None)]
    if failed and all(job.code == EXIT_RUN_AGAIN for job in failed):
        raise Interrupted(
            f"{', '.join(job.name for job in failed)} stopped and saved; run the same command again"
        )
    if failed:
        raise AtollError("; ".join(f"{job.name} failed: {_last_words(job)}" for job in failed))


def _start(job: Job, slot: int, share: machine.Share) -> None:
    environment = {**os.environ, **share.variables(slot)}
    job.log_path.parent.mkdir(parents=True, exist_ok=True)
    job.slot = slot
    job.log = job.log_path.open("wb")
    # A session of its own: Ctrl-C reaches the launcher alone, which then asks each job once, in order.
    # Should it be killed itself, each job is asked by the system.
    job.process = subprocess.Popen(
        tied.command(job.command, signal.SIGTERM),
        stdout=job.log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def _has_ended(job: Job) -> bool:
    """True once, when the process has just ended."""
    if job.process is None or job.code is not None or job.process.poll() is None:
        return False
    job.code = job.process.returncode
    if job.log:
        job.log.close()
    return True


def _stop(jobs: Sequence[Job]) -> None:
    """Ask every running job to save and stop, and wait for it."""
    running = [job for job in jobs if job.process and job.process.poll() is None]
    for job in running:
        assert job.process is not None
        job.process.send_signal(signal.SIGTERM)
    for job in running:
        assert job.process is not None
        job.process.wait()
        _has_ended(job)


class _terminable:  # noqa: N801 - used like a function
    """While active, SIGTERM interrupts the launcher as Ctrl-C does."""

    def __enter__(self) -> None:
        def interrupt(number: int, frame: object) -> None:
            raise Interrupted("asked to stop; every job has saved its state: run the same command again")

        self.before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def _last_words(job: Job) -> str:
    """What a job said last, and where it said the rest."""
    if job.words:
        return job.words
    if job.code is not None and job.code < 0:
        return f"killed by {signal.Signals(-job.code).name} (log: {job.log_path})"
    lines = job.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = lines[-1].removeprefix("atoll: ") if lines else f"exit code {job.code}"
    return f"{said} (log: {job.log_path})"

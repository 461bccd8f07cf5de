"""One stage against a store: lease it, download its inputs, run it offline, upload what it made."""

import contextlib
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any

from atoll.errors import EXIT_RUN_AGAIN, AtollError, ConfigError, Interrupted, RunError
from atoll.launch import tied
from atoll.runs import Run, Stage
from atoll.storage.leases import HEARTBEATS, Lease, LeaseLost, kept, wait
from atoll.storage.mirror import Mirror, trained
from atoll.storage.presence import Presence
from atoll.storage.progress import Attempt

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
PROGRESS_SECONDS = 15.0
"""Between two looks for something new to upload, at most."""


class ReportedError(AtollError):
    """A stage failed, and has said why on its own standard error."""


@dataclass(frozen=True)
class Errand:
    """A stage to be made: the command that makes it and the stages that it reads."""

    command: tuple[str, ...]
    stage: Stage
    inputs: tuple[Stage, ...] = ()
    records: tuple[Stage, ...] = ()
    """Stages of which only the record is read."""
    on_the_way: tuple[Stage, ...] = ()
    """Stages that the same command makes before the last one."""
    made_from: Callable[[], Mapping[str, Any]] | None = None
    """What it would be made from today, where that can be told without opening the data."""

    @property
    def leads(self) -> bool:
        """Whether it may change what the store says the run is: a lone expert may not."""
        return self.command[0] in ("prepare", "partition")


def errand(run: Run, *command: str) -> Errand:
    """What a command makes, and from what."""
    clusters = tuple(run.cluster(index) for index in range(run.config.partition.clusters))
    if command[0] == "prepare":
        return Errand(command, run.data)
    if command[0] == "partition":
        return Errand(command, run.partition, (run.data,))
    if command[0] == "router":
        return Errand(command, run.router, clusters, made_from=run.router_inputs)
    if command[0] == "student":
        return _student(run, clusters)
    index = int(command[1])
    if not 0 <= index < len(clusters):
        raise ConfigError(f"there is no expert {index}: this run has experts 0 to {len(clusters) - 1}")
    return Errand(command, run.expert(index), (clusters[index],), made_from=lambda: run.expert_inputs(index))


def _student(run: Run, clusters: tuple[Stage, ...]) -> Errand:
    """All experts in, one model out; its samples are the clusters', or drawn on the way."""
    config = run.config.student
    if config is None:
        raise ConfigError("the recipe has no [student]; add the section, even if nothing is in it")
    if config.sites is not None:
        raise ConfigError("sites hand in their rounds as folders; leave out launch.store for [student.sites]")
    experts = tuple(run.expert(index) for index in range(len(clusters)))
    drawn = tuple(run.drawn(index) for index in range(len(clusters))) if config.data == "drawn" else ()
    return Errand(
        ("student",),
        run.student if config.few is None else run.few_step,
        (*experts, *(() if drawn else clusters), *((run.router,) if len(clusters) > 1 else ())),
        records=(run.partition,),
        on_the_way=(*drawn, *((run.student,) if config.few is not None and config.steps else ())),
    )


def carry(
    run: Run,
    job: Errand,
    recipe: Path,
    overrides: Sequence[str],
    *,
    start_over: bool = False,
) -> Stage:
    """Make a stage that is not finished in the store yet, or wait while another machine does."""
    mirror = Mirror.of(run)
    mirror.open(lead=job.leads)
    arguments = [*job.command, str(recipe), *(part for text in overrides for part in ("--set", text))]
    if start_over:
        mirror.clear(job.stage)
    try:
        with stop_requests() as asked:
            while not _is_finished(mirror, job):
                seconds = run.config.launch.lease
                name = mirror.name(job.stage)
                lease = wait(mirror.leases, name, seconds, lambda: mirror.is_done(job.stage), asked)
                if lease is not None:
                    with kept(lease, seconds), contextlib.suppress(LeaseLost):
                        _work(mirror, job, arguments, asked, lease)
                elif asked():
                    raise Interrupted("asked to stop while another machine was at work; run me again")
    finally:
        with contextlib.suppress(AtollError, Interrupted):
            mirror.upload_events()
    return job.stage


def _is_finished(mirror: Mirror, job: Errand) -> bool:
    """Whether the store has the stage, made from today's inputs; an error if it was made from others."""
    needed = (*job.inputs, *job.records)
    found = [mirror.download_record(stage) for stage in needed]
    if not all(found):
        missing = needed[found.index(False)]
        raise RunError(
            f"{mirror.store.address}/{mirror.name(missing)} is not finished; make it first, or `atoll run`"
        )
    if not mirror.download_record(job.stage):
        return False
    for stage in job.on_the_way:
        mirror.download_record(stage)
    if job.made_from is not None:
        job.stage.current(job.made_from())
    return True


def _work(
    mirror: Mirror, job: Errand, arguments: Sequence[str], asked: Callable[[], bool], lease: Lease
) -> None:
    for stage in job.inputs:
        mirror.download(stage)
    attempts = []
    for stage in (*job.on_the_way, job.stage):
        if not mirror.download(stage):
            # Whoever has the lease of the last stage makes those before it; a token is each stage's own.
            token = lease.token if stage is job.stage else mirror.leases.revoke(mirror.name(stage))
            attempts.append(mirror.attempt(stage, token))
            attempts[-1].download()
    code = _run(mirror, attempts, arguments, lambda: asked() or lease.lost)
    _upload(mirror, attempts, ended=code == 0)
    if code == 0:
        return
    if asked():  # whether or not it was far enough to save: a process that is still starting cannot say so
        _check(EXIT_RUN_AGAIN)
    if not lease.lost:
        _check(code)


def _upload(mirror: Mirror, attempts: Sequence[Attempt], *, ended: bool) -> None:
    """What is finished as finished, the rest as far as it is; the last stage is finished at the end only."""
    for attempt in attempts:
        if attempt.stage.done and (ended or attempt is not attempts[-1]):
            if not mirror.is_done(attempt.stage):
                mirror.upload(attempt.stage, attempt)
        else:
            attempt.upload()
    mirror.upload_events()


def _check(code: int) -> None:
    if code == EXIT_RUN_AGAIN:
        raise Interrupted("stopped; what was done is in the store: run the same command again")
    if code < 0:
        raise AtollError(f"killed by {signal.Signals(-code).name}; run the same command again")
    if code:
        raise ReportedError("")


def _run(
    mirror: Mirror, attempts: Sequence[Attempt], arguments: Sequence[str], stop: Callable[[], bool]
) -> int:
    """Run the stage in a process of its own that knows nothing of the store, uploading what it finishes."""
    interval = min(PROGRESS_SECONDS, mirror.run.config.launch.lease / HEARTBEATS)
    process = subprocess.Popen(
        tied.command([*arguments, "--set", "launch.store="], signal.SIGTERM),
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env={**environ, "ATOLL_RUNS": str(mirror.run.path.parent.resolve())},
        start_new_session=True,
    )
    told, due = False, time.monotonic() + interval

    def tell() -> None:
        nonlocal told
        if not told:
            told = True
            process.terminate()

    try:
        with _asked_at_once(tell):
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                if stop():
                    tell()
                if time.monotonic() >= due and not told:
                    with contextlib.suppress(Interrupted):  # the store is away: the work goes on
                        _upload(mirror, attempts, ended=False)
                    due = time.monotonic() + interval
    finally:
        tell()
        process.wait()
    return process.returncode


@contextlib.contextmanager
def _asked_at_once(tell: Callable[[], None]) -> Iterator[None]:
    """Pass a request to stop on while we are waiting for the store: there may be seconds left to save."""

    def heard(number: int, frame: Any) -> None:
        tell()
        before[number](number, frame)

    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in before:
            signal.signal(number, heard)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn SIGTERM and SIGINT into a question."""
    asked = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def driving(run: Run) -> Iterator[None]:
    """Leave word in the store that the run is driven from here; at the end, the events of all are one file.

    A driver that was killed is told of by the next one, and so is one that is at work at the same time.
    """
    mirror = Mirror.of(run)
    mirror.store.check()
    sign = Presence(mirror.store, run.config.launch.lease)
    sign.announce()
    try:
        with sign.kept():
            yield
            sign.look()
    except BaseException:
        with contextlib.suppress(AtollError, Interrupted):
            mirror.gather_events()
        raise
    mirror.gather_events()


def look(run: Run) -> None:
    """What the store has of a run: the record of every cluster and of all that is trained, without files."""
    mirror = Mirror.of(run)
    for stage in (*(run.cluster(k) for k in range(run.config.partition.clusters)), *trained(run)):
        mirror.download_record(stage)


def collect(run: Run) -> Mirror:
    """All that sampling needs, from the store: networks, and what is said of the samples."""
    mirror = Mirror.of(run)
    mirror.download_networks()
    return mirror


def clear(run: Run) -> None:
    """Throw every stage away, there and here."""
    mirror = Mirror.of(run)
    for stage in (*trained(run), run.stage("drawn"), run.partition, run.data):
        mirror.clear(stage)

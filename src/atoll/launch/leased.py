"""One stage between a store and a folder: lease it, download what it reads, make it offline, upload it."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from atoll.errors import EXIT_RUN_AGAIN, AtollError, Interrupted, RunError
from atoll.launch import process, ranks, warm
from atoll.launch.job import JobSpec
from atoll.runs import Run, graph, stop_requests
from atoll.runs.graph import Node
from atoll.storage.leases import HEARTBEATS, Lease, LeaseLost, kept, wait
from atoll.storage.mirror import Mirror
from atoll.storage.presence import Presence
from atoll.storage.progress import Attempt

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
PROGRESS_SECONDS = 15.0
"""Between two looks for something new to upload, at most."""


def work(node: Node) -> None:
    """Make a stage that is not finished in the store yet, or wait while another machine does."""
    run = node.run
    mirror = Mirror.of(run)
    mirror.open(lead=node.kind.leads)
    try:
        with stop_requests() as signalled:
            while not _is_finished(mirror, node):
                seconds, name = run.config.launch.lease, mirror.name(node.stage)
                lease = wait(mirror.leases, name, seconds, lambda: mirror.is_done(node.stage), signalled)
                if lease is not None:
                    with kept(lease, seconds), contextlib.suppress(LeaseLost):
                        _make(mirror, node, signalled, lease)
                elif signalled():
                    raise Interrupted("asked to stop while another machine was at work; run me again")
    finally:
        with contextlib.suppress(AtollError, Interrupted):
            mirror.upload_events()


def _is_finished(mirror: Mirror, node: Node) -> bool:
    """Whether the store has the stage, made from today's inputs; an error if it was made from others."""
    for one in (*node.reads, *node.records):
        if not mirror.download_record(one.stage):
            raise RunError(
                f"{mirror.store.address}/{mirror.name(one.stage)} is not finished; make it first, "
                "or `atoll run`"
            )
    return mirror.download_record(node.stage) and node.stage.current(node.made_from())


def _make(mirror: Mirror, node: Node, signalled: Callable[[], bool], lease: Lease) -> None:
    for one in node.reads:
        mirror.download(one.stage)
    attempt = mirror.attempt(node.stage, lease.token)
    attempt.download()
    code = _run(mirror, node, attempt, lambda: signalled() or lease.lost)
    if code == 0 and node.stage.done:
        mirror.upload(node.stage, attempt)
        return
    attempt.upload()
    # Whether or not it was far enough to save: a process that is still starting cannot say so.
    if signalled():
        ranks.check(EXIT_RUN_AGAIN)
    if not lease.lost:
        ranks.check(code)


def _run(mirror: Mirror, node: Node, attempt: Attempt, stop: Callable[[], bool]) -> int:
    """Run the stage in a process of its own that knows nothing of the store, uploading what it finishes."""
    run = node.run
    interval = min(PROGRESS_SECONDS, run.config.launch.lease / HEARTBEATS)
    alone = run.config.model_copy(update={"launch": run.config.launch.model_copy(update={"store": ""})})
    spec = JobSpec.of(node.name, alone, run.path.resolve())
    worker = process.fork(spec, warm.inherited(process.environment(spec, {})))
    due = time.monotonic() + interval
    try:
        # The request is passed on by the signal itself: we may be waiting for the store meanwhile.
        with stop_requests(at_once=worker.terminate) as signalled:
            while worker.poll() is None:
                time.sleep(POLL_SECONDS)
                if stop() and not signalled():
                    worker.terminate()
                if time.monotonic() >= due and not stop():
                    with contextlib.suppress(Interrupted):  # the store is away: the work goes on
                        attempt.upload()
                        mirror.upload_events()
                    due = time.monotonic() + interval
    finally:
        if worker.poll() is None:
            worker.terminate()
        code = worker.wait()
    return code


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
    """What the store has of a run: the record of every stage, without files.

    What was made here before there was a store comes into it.
    """
    mirror = Mirror.of(run)
    mirror.open(lead=True)
    for node in graph.nodes(run):
        if not node.kind.again and not mirror.download_record(node.stage) and node.stage.here:
            mirror.upload(node.stage)


def download(node: Node) -> None:
    """What a stage that is made here reads."""
    mirror = Mirror.of(node.run)
    for one in (*node.reads, *node.records):
        if not one.kind.again:
            mirror.download(one.stage, lambda name: not name.endswith(".parquet"))


def upload(node: Node) -> None:
    """What was made here for people to look at, under names of its own."""
    Mirror.of(node.run).upload_folder(node.stage.path)

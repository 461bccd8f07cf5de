"""A stage that can be cut, part by part on all machines of a Ray cluster; the stage then finds them done."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from atoll.config import RunConfig
from atoll.errors import AtollError
from atoll.launch.scratch import scratch_folder
from atoll.runs import Run, graph
from atoll.runs.graph import Node, resolve
from atoll.storage.leases import Lease, kept, wait
from atoll.storage.mirror import Mirror
from atoll.storage.progress import Attempt


class Parts(Protocol):
    """What cuts a stage: `Kind.parts` names a class of this kind."""

    def missing(self) -> Sequence[Any]:
        """Open the stage; the shares that are not done yet."""
        ...

    def needed(self, share: Any) -> Callable[[str], bool]:
        """Which files of what the stage reads a share needs."""
        ...

    def progress(self, share: Any) -> Callable[[str], bool]:
        """Which files of the unfinished stage a share needs."""
        ...

    def make(self, share: Any) -> None:
        """Do one share."""
        ...


class Helper:
    """A machine's part of the work; what it has loaded stays from one share to the next."""

    def __init__(self, config: RunConfig, folder: str | None, stage: str) -> None:
        run = Run(Path(folder) if folder else scratch_folder() / config.name, config)
        self.node = graph.node(run, stage)
        self.mirror = None if folder else Mirror.of(run)
        self.parts: Parts = resolve(self.node.kind.parts)(run)
        self._attempt: Attempt | None = None

    def work(self, share: Any) -> None:
        """Do one share, between the store and the folder here if the run lives in one."""
        if self.mirror is not None:
            for one in self.node.reads:
                self.mirror.download(one.stage, self.parts.needed(share))
            self._attempt = self._attempt or self.mirror.join(self.node.stage)
            self._attempt.download(self.parts.progress(share))
        self.parts.make(share)
        if self._attempt is not None:
            self._attempt.upload_files()


def share(node: Node, ray: Any) -> None:
    """Do the parts of a stage that are missing on all machines, if there are several."""
    run = node.run
    parts: Parts = resolve(node.kind.parts)(run)
    if not run.config.launch.store:
        _share(node, parts.missing(), ray)
        return
    mirror = Mirror.of(run)
    if mirror.download_record(node.stage):
        return
    for one in node.reads:
        mirror.download(one.stage)
    with _leased(mirror, node) as lease:
        if lease is not None:
            attempt = mirror.attempt(node.stage, lease.token)
            attempt.download()
            missing = parts.missing()
            attempt.upload()
            _share(node, missing, ray)


def _share(node: Node, missing: Sequence[Any], ray: Any) -> None:
    if len(missing) > 1:  # one share is done as quickly here
        _on_all_machines(node, missing, ray)


@contextlib.contextmanager
def _leased(mirror: Mirror, node: Node) -> Iterator[Lease | None]:
    """The lease of the stage; None if another driver has made it."""
    seconds = node.run.config.launch.lease
    lease = wait(mirror.leases, mirror.name(node.stage), seconds, lambda: mirror.is_done(node.stage))
    if lease is None:
        yield None
        return
    with kept(lease, seconds):
        yield lease


def _on_all_machines(node: Node, shares: Sequence[Any], ray: Any) -> None:
    run = node.run
    launch = run.config.launch
    folder = None if launch.store else str(run.path.resolve())
    cluster = ray.cluster_resources()
    gpus = launch.gpus if node.kind.gpu and cluster.get("GPU") else 0
    room = cluster["GPU"] // gpus if gpus else cluster.get("CPU", 1) // (launch.threads or 1)
    helper = ray.remote(Helper).options(
        num_cpus=launch.threads or 1,
        num_gpus=gpus,
        max_restarts=-1,
        max_task_retries=launch.retries,
        scheduling_strategy="SPREAD",
    )
    count = max(1, min(len(shares), int(room)))
    helpers = [helper.remote(run.config, folder, node.name) for _ in range(count)]
    pool = ray.util.ActorPool(helpers)
    try:
        for _ in pool.map_unordered(
            lambda actor, one: actor.work.options(name=_title(node)).remote(one), shares
        ):
            pass
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise AtollError(
            f"{node.name}: a machine was lost too often ({type(error).__name__}); run the command again"
        ) from None
    finally:
        for one in helpers:
            ray.kill(one)


def _title(node: Node) -> str:
    return f"atoll part of {node.name}"

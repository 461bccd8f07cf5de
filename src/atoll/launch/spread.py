"""Encoding and assigning part by part on all machines of a Ray cluster; the stage then finds them done."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from atoll.config import RunConfig
from atoll.errors import AtollError
from atoll.launch.on_ray import connected, library, scratch_folder
from atoll.runs import Run, Stage
from atoll.storage.leases import Lease, kept, wait
from atoll.storage.mirror import Mirror
from atoll.storage.progress import Attempt


class Helper:
    """A machine's part of the work; its models stay loaded from one share to the next."""

    def __init__(self, config: RunConfig, folder: str | None) -> None:
        self.run = Run(Path(folder) if folder else scratch_folder() / config.name, config)
        self.mirror = None if folder else Mirror.of(self.run)
        self._open: dict[str, Any] = {}

    def prepare(self, piece: int) -> None:
        """Encode the samples of a piece of the source."""
        from atoll.data import encode, sources

        data = self.run.config.data
        source = self._once("source", lambda: sources.open_source(data))
        encoder = self._once("encoder", lambda: encode.Encoder(self.run.config.encode, source.kind))
        if self.mirror is not None:
            self._attempt(self.run.data)
        self.run.data.path.mkdir(parents=True, exist_ok=True)
        encode.write_piece(source, piece, data.part, encoder, self.run.data)
        if self.mirror is not None:
            self._attempt(self.run.data).upload_files()

    def partition(self, name: str) -> None:
        """Assign the samples of a part to clusters."""
        from atoll.data import partition, parts, rules

        stage, rows = self.run.partition, Path(name)
        if self.mirror is not None:
            own = {name, parts.features_path(rows).name, parts.dropped_path(rows).name}
            self.mirror.download(self.run.data, own.__contains__)
            self._attempt(stage).download(lambda file: not file.startswith("assignment-"))
        rule = self._once("rule", lambda: rules.read_rule(stage.path))
        partition.assign_part(parts.Parts(self.run.data), name, rule, stage.path)
        if self.mirror is not None:
            self._attempt(stage).upload_files()

    def _attempt(self, stage: Stage) -> Attempt:
        """What the driver has begun; its files, and ours for it."""
        assert self.mirror is not None
        mirror = self.mirror
        return cast(Attempt, self._once(mirror.name(stage), lambda: mirror.join(stage)))

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._open:
            self._open[name] = make()
        return self._open[name]


def spread(run: Run, command: str, *, start_over: bool = False) -> None:
    """Do the parts of `prepare` or `partition` that are missing on all machines, if there are several."""
    mirror = Mirror.of(run) if run.config.launch.store else None
    stage = run.data if command == "prepare" else run.partition
    if mirror is not None:
        mirror.open(lead=True)
        if mirror.download_record(stage):
            return
        mirror.download(run.data)
    begin = _begin_preparing if command == "prepare" else _begin_partitioning
    if mirror is None:
        _spread(run, command, begin(run, start_over))
        return
    with _leased(mirror, stage) as lease:
        if lease is not None:
            attempt = mirror.attempt(stage, lease.token)
            attempt.download()
            missing = begin(run, start_over)
            attempt.upload()
            _spread(run, command, missing)


def _spread(run: Run, command: str, missing: Sequence[Any]) -> None:
    if len(missing) > 1:  # one share is done as quickly here
        _on_all_machines(run, command, missing)


@contextlib.contextmanager
def _leased(mirror: Mirror, stage: Stage) -> Iterator[Lease | None]:
    """The lease of the stage; None if another driver has made it."""
    seconds = mirror.run.config.launch.lease
    lease = wait(mirror.leases, mirror.name(stage), seconds, lambda: mirror.is_done(stage))
    if lease is None:
        yield None
        return
    with kept(lease, seconds):
        yield lease


def _begin_preparing(run: Run, start_over: bool) -> Sequence[Any]:
    from atoll.data import encode, sources

    source = sources.open_source(run.config.data)
    if not encode.begin(run, source, start_over=start_over):
        return []
    first = [run.data.path / encode.part_name(piece, 0) for piece in range(source.pieces)]
    return [piece for piece, path in enumerate(first) if not path.is_file()]


def _begin_partitioning(run: Run, start_over: bool) -> Sequence[Any]:
    from atoll.data import partition
    from atoll.data.parts import Parts

    stage, config = run.partition, run.config.partition
    if not stage.begin(partition.inputs(run), start_over) or config.method == "file":
        return []  # a file is read more quickly than it is sent
    parts = Parts(run.data)
    missing = [name for name in parts.names if not (stage.path / partition.assignment_name(name)).is_file()]
    if len(missing) > 1:
        partition.make_rule(parts, config, run.config.seed).save(stage.path)
    return missing


def _on_all_machines(run: Run, command: str, shares: Sequence[Any]) -> None:
    ray = library()
    launch = run.config.launch
    folder = None if launch.store else str(run.path.resolve())
    with connected(ray):
        cluster = ray.cluster_resources()
        gpus = launch.gpus if command == "prepare" and cluster.get("GPU") else 0
        room = cluster["GPU"] // gpus if gpus else cluster.get("CPU", 1) // (launch.threads or 1)
        helper = ray.remote(Helper).options(
            num_cpus=launch.threads or 1,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=launch.retries,
            scheduling_strategy="SPREAD",
        )
        helpers = [helper.remote(run.config, folder) for _ in range(max(1, min(len(shares), int(room))))]
        pool = ray.util.ActorPool(helpers)
        try:
            for _ in pool.map_unordered(lambda actor, share: getattr(actor, command).remote(share), shares):
                pass
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise AtollError(
                f"{command}: a machine was lost too often ({type(error).__name__}); run the command again"
            ) from None
        finally:
            for one in helpers:
                ray.kill(one)

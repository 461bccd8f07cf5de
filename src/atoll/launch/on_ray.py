"""Jobs as Ray tasks: Ray finds each a machine, and starts it again elsewhere when that machine is lost."""

import json
import logging
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll import threads
from atoll.config import LaunchConfig
from atoll.errors import EXIT_RUN_AGAIN, AtollError, ConfigError, StorageError
from atoll.launch import parts_on_ray, process
from atoll.launch.engine import Place
from atoll.launch.job import Job, JobSpec, JobStatus, last_line
from atoll.launch.scratch import scratch_folder
from atoll.runs import Stage
from atoll.runs.graph import Node
from atoll.storage.mirror import Mirror

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
METRICS_SECONDS = 5.0
"""Between two looks at the metrics of a job elsewhere."""


class RunAgain(Exception):  # noqa: N818 - not an error
    """A job was stopped and has saved: Ray starts it again."""


class OnRay:
    """The cluster that RAY_ADDRESS names or that this machine is part of."""

    seconds = 0.5
    stopped = "asked to stop; every job was told to save: run the same command again"

    def __init__(self, place: Place, ray: Any) -> None:
        self.launch, self.ray = place.launch, ray
        stored = place.run is not None and bool(place.launch.store)
        self.mirror = Mirror.of(place.run) if stored and place.run is not None else None
        self._waiting: dict[str, Any] = {}
        self._stop_key = f"atoll/stop/{uuid.uuid4().hex}"
        """In the cluster's own table: written when jobs are to save. An interrupt of Ray's may get lost."""
        self._due: dict[str, float] = {}

    def room(self, ready: int, running: int) -> int:
        """All of them: Ray keeps what has no machine yet."""
        return ready

    def start(self, job: Job) -> None:
        """Give a job to the cluster, with what it needs of a machine."""
        cluster = self.ray.cluster_resources()
        needs = resources(self.launch, job, cluster)
        _warn_of_waiting(job.name, needs, cluster)
        again = {"max_retries": self.launch.retries, "retry_exceptions": [RunAgain]}
        placed = self.ray.remote(work).options(
            name=f"atoll {job.name}", scheduling_strategy="SPREAD", **again, **needs
        )
        spec = job.spec.nowhere() if self.mirror is not None else job.spec
        self._waiting[job.name] = placed.remote(spec, job.name, self.launch.threads or 1, self._stop_key)

    def poll(self, status: JobStatus) -> None:
        """Note how a job ended, or that it is at work, which its metrics tell."""
        reference = self._waiting[status.name]
        finished, _ = self.ray.wait([reference], timeout=0)
        if finished:
            status.code, status.words = self._end(reference)
            del self._waiting[status.name]
        if not status.running or status.code is None:
            self._look(status)

    def _look(self, status: JobStatus) -> None:
        now = time.monotonic()
        if self.mirror is not None and now >= self._due.get(status.name, 0.0):
            self._due[status.name] = now + METRICS_SECONDS
            self.mirror.download_metrics(Stage(status.job.folder))
        status.running = status.running or status.code is not None or bool(status.progress())

    def _end(self, reference: Any) -> tuple[int, str]:
        """The exit code of a job and its last words."""
        exceptions = self.ray.exceptions
        try:
            code, words = self.ray.get(reference)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, RunAgain):
                return EXIT_RUN_AGAIN, "stopped too often"
            return 1, str(error.cause)
        except exceptions.RayError as error:
            return 1, f"its machine was lost too often ({type(error).__name__})"
        return int(code), str(words)

    def stop(self, jobs: Sequence[Job]) -> None:
        """Tell every job to save, and wait as long as a machine has for that."""
        references = [self._waiting[job.name] for job in jobs if job.name in self._waiting]
        if references:
            internal_kv()._internal_kv_put(self._stop_key, b"save")
            _, late = self.ray.wait(references, num_returns=len(references), timeout=self.launch.grace)
            for reference in late:
                self.ray.cancel(reference, force=True)

    def share(self, node: Node) -> None:
        """Do parts of a stage on all machines."""
        parts_on_ray.share(node, self.ray)


@contextmanager
def opened(place: Place) -> Iterator[OnRay]:
    """The Ray cluster that RAY_ADDRESS names or that this machine is part of, or one of its own."""
    ray = library()
    if ray.is_initialized():
        yield OnRay(place, ray)
        return
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        raise AtollError(
            "no Ray cluster answers; start one with `ray start --head`, or correct RAY_ADDRESS"
        ) from None
    try:
        yield OnRay(place, ray)
    finally:
        ray.shutdown()


def library() -> Any:
    """Ray, quiet: it neither talks over our table nor reports its use."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray needs the library ray; pip install 'atoll[ray]'") from None
    return ray


def internal_kv() -> Any:
    """The table of the cluster, which every machine of it can read."""
    from ray.experimental import internal_kv

    return internal_kv


def resources(launch: LaunchConfig, job: Job, cluster: Mapping[str, float]) -> dict[str, Any]:
    """What a job needs of a machine, in Ray's words: from [launch], and the memory that the plan says."""
    custom = dict(launch.resources)
    gpus = custom.pop("GPU", launch.gpus if cluster.get("GPU") and job.gpu else 0)
    needs: dict[str, Any] = {"num_cpus": launch.threads or 1, "num_gpus": gpus, "resources": custom}
    if not gpus and job.memory:  # on a GPU it is the GPU's memory that counts, and Ray does not know that
        needs["memory"] = job.memory
    return needs


def _warn_of_waiting(name: str, needed: Mapping[str, Any], cluster: Mapping[str, float]) -> None:
    """A cluster may grow, so what no machine has is waited for; but not in silence."""
    wanted = {**needed["resources"], "CPU": needed["num_cpus"], "GPU": needed["num_gpus"]}
    missing = [what for what, amount in wanted.items() if amount > cluster.get(what, 0)]
    if missing:
        logger.warning("%s waits for a machine with %s", name, ", ".join(missing))


def work(spec: JobSpec, name: str, count: int, stop_key: str) -> tuple[int, str]:
    """On some machine: run the job there, as a person would by hand; its exit code and last words."""
    scratch = scratch_folder()
    if not spec.folder:
        spec = spec.at(scratch / json.loads(spec.resolved)["name"])
    elif not Path(spec.folder).is_dir():
        raise StorageError(f"{spec.folder} cannot be seen from every machine; set launch.store to what can")
    log = scratch / f"{name.replace(' ', '-').replace('/', '-')}.log"
    with log.open("wb") as file:
        # What dies with its machine cannot upload anything, so neither does what dies with its worker.
        running = process.start(spec, log=file, variables=threads.variables(count), at_death=signal.SIGKILL)
        try:
            while running.poll() is None:  # a request of Ray's does not reach who waits for the system
                time.sleep(POLL_SECONDS)
                if internal_kv()._internal_kv_exists(stop_key):
                    running.terminate()
                    running.wait()
                    return running.returncode, last_line(log)
        except BaseException:  # cancelled: the job saves, then we go
            running.terminate()
            running.wait()
            raise
    if running.returncode == EXIT_RUN_AGAIN:
        raise RunAgain(name)
    return running.returncode, last_line(log)

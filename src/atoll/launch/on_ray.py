"""Jobs as Ray tasks: Ray finds each a machine, and starts it again elsewhere when that machine is lost."""

import hashlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import EXIT_RUN_AGAIN, AtollError, ConfigError, Interrupted, StorageError
from atoll.launch import tied
from atoll.launch.courier import stop_requests
from atoll.launch.local import Job, report
from atoll.launch.table import Watch
from atoll.plan import plan
from atoll.runs import Run, Stage
from atoll.storage.mirror import Mirror

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
METRICS_SECONDS = 5.0
"""Between two looks at the metrics of jobs elsewhere."""


class RunAgain(Exception):  # noqa: N818 - not an error
    """A job was stopped and has saved: Ray starts it again."""


@dataclass(frozen=True)
class Task:
    """What a machine is told: a command, its recipe, and where the run is."""

    name: str
    command: tuple[str, ...]
    recipe: str
    """The text of the recipe: the file may not be there."""
    runs: str | None
    """The folder with all runs, where machines share one; None where the run lives in a store."""
    threads: int


def run_jobs(jobs: Sequence[Job], run: Run, recipe: Path, watch: Watch) -> None:
    """Run every job to its end; one that fails is reported after the others have finished."""
    ray = library()
    with connected(ray), stop_requests() as asked:
        needs = {job.name: resources(run, job.name, ray.cluster_resources()) for job in jobs}
        _warn_of_waiting(needs, ray.cluster_resources())
        again = {"max_retries": run.config.launch.retries, "retry_exceptions": [RunAgain]}
        remote, waiting = ray.remote(work), {}
        for job in jobs:
            placed = remote.options(
                name=f"atoll {job.name}", scheduling_strategy="SPREAD", **again, **needs[job.name]
            )
            waiting[placed.remote(_task(job, run, recipe))] = job
        glance = _Glance(run)
        while waiting:
            finished, _ = ray.wait([*waiting], timeout=POLL_SECONDS)
            for reference in finished:
                _end(ray, reference, waiting.pop(reference))
            glance(jobs)
            watch(jobs)
            if asked():
                for reference in waiting:
                    ray.cancel(reference)
                ray.wait([*waiting], num_returns=len(waiting), timeout=run.config.launch.grace)
                raise Interrupted("asked to stop; every job was told to save: run the same command again")
    report(jobs)


def library() -> Any:
    """Ray, quiet: it neither talks over our table nor reports its use."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray needs the library ray; pip install 'atoll[ray]'") from None
    return ray


@contextmanager
def connected(ray: Any) -> Iterator[None]:
    """To the cluster that RAY_ADDRESS names or that this machine is part of; else to one of its own."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:
        raise AtollError(
            "no Ray cluster answers; start one with `ray start --head`, or correct RAY_ADDRESS"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def resources(run: Run, name: str, cluster: Mapping[str, float]) -> dict[str, Any]:
    """What a job needs of a machine, in Ray's words: from [launch], and the memory that the plan says."""
    launch = run.config.launch
    custom = dict(launch.resources)
    gpus = custom.pop("GPU", launch.gpus if cluster.get("GPU") else 0)
    needs: dict[str, Any] = {"num_cpus": launch.threads or 1, "num_gpus": gpus, "resources": custom}
    if not gpus:  # on a GPU it is the GPU's memory that counts, and Ray does not know that
        contents = run.data.contents.facts() if run.data.done else None
        counted = plan(run.config, contents)["jobs"]
        stages = ("student", "few-step") if name == "student" else (name,)
        needs["memory"] = int(max(counted[one]["memory_bytes"]["total"] for one in stages if one in counted))
    return needs


def _warn_of_waiting(needs: Mapping[str, Mapping[str, Any]], cluster: Mapping[str, float]) -> None:
    """A cluster may grow, so what no machine has is waited for; but not in silence."""
    for name, needed in needs.items():
        wanted = {**needed["resources"], "CPU": needed["num_cpus"], "GPU": needed["num_gpus"]}
        missing = [what for what, amount in wanted.items() if amount > cluster.get(what, 0)]
        if missing:
            logger.warning("%s waits for a machine with %s", name, ", ".join(missing))


def _task(job: Job, run: Run, recipe: Path) -> Task:
    return Task(
        job.name,
        tuple("RECIPE" if part == str(recipe) else part for part in job.command),
        recipe.read_text(encoding="utf-8"),
        None if run.config.launch.store else str(run.path.parent.resolve()),
        run.config.launch.threads or 1,
    )


def work(task: Task) -> tuple[int, str]:
    """On some machine: run the job there, as a person would by hand; its exit code and last words."""
    scratch = scratch_folder()
    runs = Path(task.runs) if task.runs else scratch
    if not runs.is_dir():
        raise StorageError(f"{runs} cannot be seen from every machine; set launch.store to what can")
    recipe = scratch / f"{hashlib.sha256(task.recipe.encode()).hexdigest()[:16]}.toml"
    recipe.write_text(task.recipe, encoding="utf-8")
    log = scratch / f"{task.name.replace(' ', '-')}.log"
    arguments = [str(recipe) if part == "RECIPE" else part for part in task.command]
    threads = str(task.threads)
    with log.open("wb") as file:
        # What dies with its machine cannot hand anything in, so neither does what dies with its worker.
        process = subprocess.Popen(
            tied.command(arguments, signal.SIGKILL),
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "ATOLL_RUNS": str(runs),
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
            },
        )
        try:
            code = process.wait()
        except BaseException:  # cancelled: the job saves, then we go
            process.terminate()
            process.wait()
            raise
    if code == EXIT_RUN_AGAIN:
        raise RunAgain(task.name)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return code, lines[-1].removeprefix("atoll: ") if lines else ""


def scratch_folder() -> Path:
    """Where this machine keeps what it has fetched: $ATOLL_SCRATCH, or among temporary files."""
    import ray

    top = Path(os.environ.get("ATOLL_SCRATCH") or Path(tempfile.gettempdir()) / f"atoll-{os.getuid()}")
    folder = top / ray.get_runtime_context().get_node_id()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _end(ray: Any, reference: Any, job: Job) -> None:
    """Note how a job ended."""
    try:
        job.code, job.words = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        job.code, job.words = 1, str(error.cause)
        if isinstance(error.cause, RunAgain):
            job.code, job.words = EXIT_RUN_AGAIN, "stopped too often"
    except ray.exceptions.RayError as error:
        job.code, job.words = 1, f"its machine was lost too often ({type(error).__name__})"


class _Glance:
    """How far jobs elsewhere are, as the store says; where folders are shared, files say it themselves."""

    def __init__(self, run: Run) -> None:
        self.mirror = Mirror.of(run) if run.config.launch.store else None
        self.due = 0.0

    def __call__(self, jobs: Sequence[Job]) -> None:
        if self.mirror is not None and time.monotonic() >= self.due:
            for job in jobs:
                if job.code is None or not job.progress():
                    self.mirror.download_metrics(Stage(job.folder))
            self.due = time.monotonic() + METRICS_SECONDS
        for job in jobs:
            job.placed = job.placed or job.code is not None or bool(job.progress())

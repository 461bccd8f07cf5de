"""Jobs of a Slurm cluster: one each, saved ahead of preemption and time limit, and queued again."""

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from atoll import threads
from atoll.errors import EXIT_RUN_AGAIN, ConfigError
from atoll.launch import machine, process
from atoll.launch.engine import Place
from atoll.launch.job import Job, JobSpec, JobStatus
from atoll.runs import read_json, write_json
from atoll.runs.graph import Node

logger = logging.getLogger(__name__)

SUBMITTED = "jobs.json"
"""Which job of Slurm has which of ours: a driver that is started again watches on, and submits none twice."""
AT_WORK = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED")


class Work:
    """One job as Slurm runs it; `checkpoint` is what submitit calls ahead of preemption and time limit."""

    def __init__(self, spec: JobSpec, count: int, log: str, attempts: int) -> None:
        self.spec, self.threads, self.log, self.attempts = spec, count, log, attempts
        self._pid: int | None = None

    def __call__(self) -> int:
        """Run the job to its end; one that has saved and stopped is queued again."""
        with open(self.log, "ab") as log:
            running = process.start(self.spec, log=log, variables=threads.variables(self.threads))
            self._pid = running.pid
            _wait(running.pid)
            self._pid = None
            code = running.wait()
        if code == EXIT_RUN_AGAIN and self.attempts > 0:
            # As if Slurm had announced a preemption: submitit saves the submission and queues it again.
            os.kill(os.getpid(), getattr(signal, "SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")))
            time.sleep(1)
        return code

    def checkpoint(self, *_: Any) -> Any:
        """Let the job save, and say how it goes on."""
        from submitit.helpers import DelayedSubmission

        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            _wait(self._pid)
        return DelayedSubmission(Work(self.spec, self.threads, self.log, self.attempts - 1))


def _wait(pid: int) -> None:
    """Until a child has ended, without a lock: a signal's handler may have to wait for the same one."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


class OnSlurm:
    """The cluster that this login node belongs to."""

    seconds = 1.0
    stopped = "no longer watching; the jobs go on: run the same command to watch them"

    def __init__(self, place: Place) -> None:
        self.launch, self.folder = place.launch, place.folder / "slurm"
        self.executor = open_executor(place)
        self._jobs: dict[str, Any] = {}
        self._earlier: set[str] = set()
        """Those that an earlier driver has submitted."""

    def room(self, ready: int, running: int) -> int:
        """All of them: Slurm has a queue."""
        return ready

    def start(self, job: Job) -> None:
        """Submit a job, unless an earlier driver has: then watch that one."""
        path = self.folder / SUBMITTED
        known = read_json(path) if path.is_file() else {}
        before = known.get(job.name, {})
        attached = self._attached(before["id"]) if before.get("digest") == job.spec.digest else None
        if attached:
            self._earlier.add(job.name)
        self._jobs[job.name] = attached or self.executor.submit(self._work(job))
        known[job.name] = {"id": self._jobs[job.name].job_id, "digest": job.spec.digest}
        write_json(path, known)

    def _work(self, job: Job) -> Work:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.spec.arguments()  # its settings are written down before it waits in the queue
        return Work(job.spec, self.launch.threads or 1, str(job.log.resolve()), self.launch.retries)

    def _attached(self, job_id: str) -> Any | None:
        """A job that an earlier driver has submitted, if it is still in the queue or at work."""
        job = self.executor.job_class(self.executor.folder, job_id)
        return job if job.state in AT_WORK else None

    def poll(self, status: JobStatus) -> None:
        """Note whether a job is at work, or how it ended."""
        job = self._jobs[status.name]
        if status.name in self._earlier:
            status.resumed = 0  # what it has saved meanwhile it does not go on from
        status.running = status.running or job.state == "RUNNING"
        if job.done():
            status.code = _code(job)
            status.running = True

    def stop(self, jobs: Sequence[Job]) -> None:
        """They go on."""

    def share(self, node: Node) -> None:
        """A login node is no place to wait for parts."""


@contextlib.contextmanager
def opened(place: Place) -> Iterator[OnSlurm]:
    """A Slurm cluster as an engine."""
    yield OnSlurm(place)


def open_executor(place: Place) -> Any:
    """Slurm, or with launch.slurm.cluster = "local" this machine in its place, to try things out."""
    launch, folder = place.launch, place.folder / "slurm"
    options = dict(launch.slurm)
    cluster = options.pop("cluster", "slurm")
    try:
        import submitit
    except ImportError:
        raise ConfigError("--on slurm needs the library submitit; pip install 'atoll[slurm]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    if cluster == "local":
        executor: Any = submitit.LocalExecutor(folder, max_num_timeout=launch.retries)
        there = [int(name) for name in machine.visible_gpus() if name.isdecimal()]
        executor.update_parameters(
            timeout_min=launch.minutes,
            signal_delay_s=launch.grace,
            gpus_per_node=min(math.ceil(launch.gpus), len(there)),
            visible_gpus=there,
        )
        return executor
    try:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=launch.retries)
    except RuntimeError:
        raise ConfigError(
            "--on slurm: there is no Slurm here; run on a login node of a cluster that has it"
        ) from None
    executor.update_parameters(
        job_name=f"atoll-{place.folder.name}",
        time=launch.minutes,
        signal_delay_s=launch.grace,
        cpus_per_task=launch.threads or 1,
        **({"gpus_per_node": math.ceil(launch.gpus)} if launch.gpus else {}),
        additional_parameters={"requeue": True, **options},
    )
    return executor


def _code(job: Any) -> int:
    """How a job ended: its own exit code, or 1 where Slurm has ended it."""
    error = job.exception()
    if error is None:
        return int(job.result())
    logger.debug("job %s: %s", job.job_id, error)
    return 1

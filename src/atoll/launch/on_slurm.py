"""Jobs of a Slurm cluster: one each, saved ahead of preemption and time limit, and queued again."""

import contextlib
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll.errors import EXIT_RUN_AGAIN, ConfigError, Interrupted
from atoll.launch import tied
from atoll.launch.courier import stop_requests
from atoll.launch.local import Job, report
from atoll.launch.table import Watch
from atoll.runs import Run, read_json, write_json

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
SUBMITTED = "jobs.json"
"""Which job of Slurm has which of ours: a driver that is started again watches on, and submits none twice."""


class Work:
    """One job as Slurm runs it; `checkpoint` is what submitit calls ahead of preemption and time limit."""

    def __init__(self, arguments: Sequence[str], runs: str, threads: int, log: str, attempts: int) -> None:
        self.arguments, self.runs, self.threads = tuple(arguments), runs, threads
        self.log, self.attempts = log, attempts
        self._pid: int | None = None

    def __call__(self) -> int:
        """Run the job to its end; one that has saved and stopped is queued again."""
        threads = str(self.threads)
        environment = {"ATOLL_RUNS": self.runs, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                tied.command(self.arguments, signal.SIGTERM),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            self._pid = process.pid
            _wait(process.pid)
            self._pid = None
            code = process.wait()
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
        return DelayedSubmission(Work(self.arguments, self.runs, self.threads, self.log, self.attempts - 1))


def _wait(pid: int) -> None:
    """Until a child has ended, without a lock: a signal's handler may have to wait for the same one."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def run_jobs(jobs: Sequence[Job], run: Run, recipe: Path, watch: Watch) -> None:
    """Submit every job that is not in the queue yet, and watch all to their ends."""
    executor = open_executor(run)
    folder = run.path / "slurm"
    known = read_json(folder / SUBMITTED) if (folder / SUBMITTED).is_file() else {}
    submitted: dict[str, Any] = {}
    for job in jobs:
        submitted[job.name] = _attached(executor, known.get(job.name)) or executor.submit(_work(job, run))
    write_json(folder / SUBMITTED, {name: one.job_id for name, one in submitted.items()})
    with stop_requests() as asked:
        while any(job.code is None for job in jobs):
            time.sleep(POLL_SECONDS)
            for job in jobs:
                job.placed = job.placed or submitted[job.name].state == "RUNNING"
                if job.code is None and submitted[job.name].done():
                    job.code = _code(submitted[job.name])
            watch(jobs)
            if asked():
                raise Interrupted("no longer watching; the jobs go on: run the same command to watch them")
    report(jobs)


def open_executor(run: Run) -> Any:
    """Slurm, or with launch.slurm.cluster = "local" this machine in its place, to try things out."""
    launch, folder = run.config.launch, run.path / "slurm"
    options = dict(launch.slurm)
    cluster = options.pop("cluster", "slurm")
    try:
        import submitit
    except ImportError:
        raise ConfigError("--on slurm needs the library submitit; pip install 'atoll[slurm]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    if cluster == "local":
        executor: Any = submitit.LocalExecutor(folder, max_num_timeout=launch.retries)
        executor.update_parameters(timeout_min=launch.minutes, signal_delay_s=launch.grace)
        return executor
    try:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=launch.retries)
    except RuntimeError:
        raise ConfigError(
            "--on slurm: there is no Slurm here; run on a login node of a cluster that has it"
        ) from None
    executor.update_parameters(
        job_name=f"atoll-{run.config.name}",
        time=launch.minutes,
        signal_delay_s=launch.grace,
        cpus_per_task=launch.threads or 1,
        **({"gpus_per_node": math.ceil(launch.gpus)} if launch.gpus else {}),
        additional_parameters={"requeue": True, **options},
    )
    return executor


def _work(job: Job, run: Run) -> Work:
    launch = run.config.launch
    runs = str(run.path.parent.resolve())
    job.log_path.parent.mkdir(parents=True, exist_ok=True)
    arguments = [os.path.abspath(part) if part.endswith(".toml") else part for part in job.command]
    return Work(arguments, runs, launch.threads or 1, str(job.log_path.resolve()), launch.retries)


def _attached(executor: Any, job_id: str | None) -> Any | None:
    """A job that an earlier driver has submitted, if it is still in the queue or at work."""
    if job_id is None:
        return None
    job = executor.job_class(executor.folder, job_id)
    return job if job.state in ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED") else None


def _code(job: Any) -> int:
    """How a job ended: its own exit code, or 1 where Slurm has ended it."""
    error = job.exception()
    if error is None:
        return int(job.result())
    logger.debug("job %s: %s", job.job_id, error)
    return 1

"""A worker's process: started in one way by everybody, and never outliving who started it."""

import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from atoll.launch.job import JobSpec

PR_SET_PDEATHSIG = 1
"""Of prctl(2), Linux; elsewhere a job may outlive its starter, and its lock keeps others away meanwhile."""


def start(
    spec: JobSpec,
    *,
    log: IO[bytes] | None = None,
    variables: Mapping[str, str] | None = None,
    at_death: signal.Signals = signal.SIGTERM,
) -> "subprocess.Popen[bytes]":
    """Start a worker, which gets `at_death` when this process dies; without a log it speaks as we do."""
    # A session of its own: Ctrl-C reaches the driver alone, which then asks each job once, in order.
    return subprocess.Popen(
        command(spec, at_death),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if log is None else log,
        stderr=None if log is None else subprocess.STDOUT,
        env={**os.environ, "ATOLL_RUNS": str(Path(spec.folder).parent), **(variables or {})},
        start_new_session=True,
    )


def command(spec: JobSpec, at_death: signal.Signals) -> list[str]:
    """The command line of a worker."""
    tie = [str(int(at_death)), str(os.getpid())]
    return [sys.executable, "-m", "atoll.launch.process", *tie, *spec.arguments()]


def main() -> None:
    """Tie this process to its parent, then be the worker."""
    number, parent, module, *arguments = sys.argv[1:]
    # Slurm announces the end of a job to all its processes by this one; who started us passes it on.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != int(parent):  # it died before we were tied to it
            os.kill(os.getpid(), int(number))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()

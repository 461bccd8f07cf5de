"""A worker's process: started in one way by everybody, and never outliving who started it."""

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from atoll import exits
from atoll.launch import ties, warm
from atoll.launch.job import JobSpec
from atoll.runs import graph


class Worker(Protocol):
    """A worker at work, as `subprocess.Popen` has it."""

    @property
    def returncode(self) -> int | None:
        """The exit code, once somebody has looked and it has ended."""
        ...

    def poll(self) -> int | None:
        """Look whether it has ended."""
        ...

    def wait(self) -> int:
        """Until it has ended."""
        ...

    def terminate(self) -> None:
        """Ask it to save and stop."""
        ...


def environment(spec: JobSpec, variables: Mapping[str, str]) -> dict[str, str]:
    """That of a worker."""
    return {**os.environ, "ATOLL_RUNS": str(Path(spec.folder).parent), **variables}


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
        env=environment(spec, variables or {}),
        start_new_session=True,
    )


def fork(
    spec: JobSpec,
    parent: warm.Parent | None,
    *,
    log: IO[bytes] | None = None,
    variables: Mapping[str, str] | None = None,
    heir: bool = False,
) -> Worker:
    """Start a worker as a fork of a process that has imported what it needs, if there is one."""
    if parent is None:
        return start(spec, log=log, variables=variables)
    module, *arguments = spec.arguments()
    request = warm.Request(
        module,
        arguments,
        environment(spec, variables or {}),
        os.getcwd(),
        spec.stage,
        int(signal.SIGTERM),
        [module, *graph.makers(spec.stage)],
        heir,
    )
    with open(os.devnull, "wb") as nothing:
        out, err = (nothing.fileno(), 2) if log is None else (log.fileno(), log.fileno())
        return parent.start(request, out, err, lambda: start(spec, log=log, variables=variables))


def command(spec: JobSpec, at_death: signal.Signals) -> list[str]:
    """The command line of a worker."""
    tie = [str(int(at_death)), str(os.getpid())]
    return [sys.executable, "-m", "atoll.launch.process", *tie, *spec.arguments()]


def main() -> None:
    """Tie this process to its parent, then be the worker."""
    number, parent, module, *arguments = sys.argv[1:]
    # Slurm announces the end of a job to all its processes by this one; who started us passes it on.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    ties.tie(int(number), int(parent))
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        exits.leave(end.code)
        raise
    exits.leave(0)


if __name__ == "__main__":
    main()

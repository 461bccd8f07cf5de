"""The ranks of one job: as many processes as it has GPUs, started together, stopped together, ended as one.

As `torchrun` on one machine, whose exit code does not tell a job that has saved from one that failed.
"""

import os
import signal
import socket
import subprocess
import time

from atoll.errors import EXIT_RUN_AGAIN, AtollError, Interrupted
from atoll.launch import machine, process
from atoll.launch.job import JobSpec
from atoll.runs import stop_requests
from atoll.runs.graph import Node

POLL_SECONDS = 0.1
PATIENCE = 60.0
"""Seconds that the other ranks have to end when one of them has failed: they wait for it in vain."""


class ReportedError(AtollError):
    """A process of ours failed, and has said why on its own standard error."""


def wanted(node: Node) -> int:
    """How many ranks a job should have here: one for each of its GPUs; one where a rank asks itself."""
    if node.training is None or "WORLD_SIZE" in os.environ:
        return 1
    return min(int(node.run.config.launch.gpus), len(machine.visible_gpus())) or 1


def run(spec: JobSpec, size: int) -> int:
    """Run a job by so many ranks; its exit code is 75 if all have saved and stopped."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(size)}
    running: list[subprocess.Popen[bytes]] = []

    def stop() -> None:
        for one in running:
            one.terminate()

    with stop_requests(at_once=stop) as signalled:
        for rank in range(size):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            running.append(process.start(spec, log=None, variables=own))
        if signalled():
            stop()
        code = _wait(running)
        # Those that were still starting could not say that they stop.
        return EXIT_RUN_AGAIN if signalled() and code == -signal.SIGTERM else code


def _wait(running: "list[subprocess.Popen[bytes]]") -> int:
    """Until all have ended; when one fails the others, which wait for it, are ended as well."""
    deadline: float | None = None
    try:
        while any(one.poll() is None for one in running):
            time.sleep(POLL_SECONDS)
            failed = [one for one in running if one.returncode not in (None, 0)]
            if failed and deadline is None:
                deadline = time.monotonic() + PATIENCE
                for one in running:
                    one.terminate()
            if deadline is not None and time.monotonic() > deadline:
                for one in running:
                    one.kill()
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
            one.wait()
    return _code([one.returncode for one in running])


def _code(codes: list[int]) -> int:
    """One exit code for all: what went wrong first and for good, else that they have saved."""
    wrong = [code for code in codes if code not in (0, EXIT_RUN_AGAIN, -signal.SIGTERM)]
    if wrong:
        return wrong[0]
    if EXIT_RUN_AGAIN in codes:  # the others were ended by us, if not by themselves
        return EXIT_RUN_AGAIN
    return min(codes)


def check(code: int) -> None:
    """Turn the exit code of a process of ours into what it means."""
    if code == EXIT_RUN_AGAIN:
        raise Interrupted("stopped and saved; run the same command again")
    if code < 0:
        raise AtollError(f"killed by {signal.Signals(-code).name}; run the same command again")
    if code:
        raise ReportedError("")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

"""The process that jobs are forked from: it imports what they need, forks them, and tells how they end."""

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll import exits
from atoll.launch import ties, warm
from atoll.launch.warm import MESSAGE, Parent, Request

NAME = "atoll-parent"
"""What the system calls a parent."""
LATER = {"torch": "torch._dynamo", "pyarrow": "pandas"}
"""What libraries import at their first use: torch with an optimiser, which takes as long as torch itself."""
HARMLESS = {"jemalloc_bg_thd"}
"""Threads that are started anew in a fork by the library that they belong to."""


def main() -> None:
    """Be a parent, `python -m atoll.launch.forking STARTER FILE`; what returns is a job."""
    starter, file = map(int, sys.argv[1:])
    ties.tie(signal.SIGKILL, starter)
    # Slurm announces the end of a job to all its processes by this one; who started us passes it on.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    request = _serve(socket.socket(fileno=file))
    try:
        _be(request)
    except SystemExit as end:
        exits.leave(end.code)
        raise
    exits.leave(0)


def _serve(line: socket.socket) -> Request:
    """Fork a job for every request until nobody is left to ask; returns in the job alone."""
    ties.name(NAME)
    jobs: dict[int, int] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(line, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.data is not None:
                    _report(line, jobs, ready, key)
                    continue
                message, files, _, _ = socket.recv_fds(line, MESSAGE, 2)
                if not message:
                    os._exit(0)
                asked = json.loads(message)
                if "signal" in asked:
                    _pass_on(jobs, asked)
                elif (request := _start(line, asked, files, jobs, ready)) is not None:
                    return request


def _report(line: socket.socket, jobs: dict[int, int], ready: Any, key: Any) -> None:
    """Say how a job has ended."""
    number = key.data
    _, status = os.waitpid(jobs.pop(number), 0)
    ready.unregister(key.fileobj)
    os.close(key.fileobj)
    _answer(line, number, "code", os.waitstatus_to_exitcode(status))


def _answer(line: socket.socket, number: int, what: str, value: int | None) -> None:
    with contextlib.suppress(OSError):  # nobody is there any more: the next look says so
        line.send(json.dumps({"job": number, "what": what, "value": value}).encode())


def _pass_on(jobs: dict[int, int], asked: dict[str, int]) -> None:
    """Signal a job that has not ended: until it is waited for, nobody else can have its number."""
    if asked["to"] in jobs:
        os.kill(jobs[asked["to"]], asked["signal"])


def _start(
    line: socket.socket, asked: dict[str, Any], files: list[int], jobs: dict[int, int], ready: Any
) -> Request | None:
    """Fork a job; a request in the job, nothing in its parent."""
    number = asked.pop("start")
    request = Request(**asked)
    _load(request.imports)
    parent = os.getpid()
    if has_threads():
        _answer(line, number, "code", None)
    elif pid := _fork():
        jobs[number] = pid
        _answer(line, number, "pid", pid)
        ready.register(os.pidfd_open(pid), selectors.EVENT_READ, number)
    else:
        for key in list(ready.get_map().values()):
            if key.data is not None:
                os.close(key.fileobj)
        line.close()
        _become(request, files, parent)
        return request
    for file in files:
        os.close(file)
    return None


def _load(modules: Sequence[str]) -> None:
    """Import modules, and what they will import."""
    for module in modules:
        _import(module)
    for library, later in LATER.items():
        if library in sys.modules:
            _import(later)


def _import(module: str) -> None:
    with contextlib.suppress(Exception):  # the job will meet the same, and say so, if it matters to it
        importlib.import_module(module)


def has_threads() -> bool:
    """Whether there are threads that a fork would lose."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return len([name for name in names if name not in HARMLESS]) > 1


def _fork() -> int:
    gc.freeze()  # what is here stays: a job's collector need not copy the pages of it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it counts the thread that is harmless
        return os.fork()


def _become(request: Request, files: list[int], parent: int) -> None:
    """Take on what makes a process another: session, name, files, environment, and the tie to its parent."""
    os.setsid()
    ties.tie(request.at_death, parent)
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)


def _be(request: Request) -> None:
    """Run the module as a program."""
    if request.heir and (again := _leave_parent(request)) is not None:
        _be(again)
        return
    ties.name(request.name)
    sys.argv = [request.module, *request.arguments]
    sys.modules.pop(request.module, None)  # it is run, though it may have been imported
    runpy.run_module(request.module, run_name="__main__")


def _leave_parent(request: Request) -> Request | None:
    """Fork a parent for this job's own jobs; a request in one of those."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = os.getpid()
    if _fork():
        there.close()
        warm.INHERITED = Parent(here, request.environment)
        return None
    here.close()
    os.setsid()
    ties.tie(signal.SIGKILL, own)
    with open(os.devnull, "r+b") as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    return _serve(there)


if __name__ == "__main__":
    main()

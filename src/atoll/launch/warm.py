"""Jobs as forks of a process that has imported what they need: torch is loaded once, not once per job.

Loading torch and its optimisers takes seconds of processor time, as long as many a job of a study. The parent
imports and does nothing else: it computes nothing and touches no device, so that it has a single thread and a
fork of it is as good as a fresh interpreter. Libraries read the environment as they are loaded, so jobs with
another environment have another parent. It ends with who started it, and its jobs are then asked to stop.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "ATOLL_"
"""Variables of ours are read where they are used: a job may have others than its parent."""
MESSAGE = 1 << 20

FORKS = sys.platform == "linux" and hasattr(os, "pidfd_open") and hasattr(socket, "SOCK_SEQPACKET")
"""Elsewhere a library may have threads that a fork loses, and nothing ties a job to its parent."""


@dataclass(frozen=True)
class Request:
    """A module to be run as a program."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    name: str
    """What the system calls the process."""
    at_death: int
    """The signal that it gets when its parent dies."""
    imports: list[str]
    """What it will import."""
    heir: bool = False
    """Whether it gets a parent for jobs of its own."""


class Refused(Exception):  # noqa: N818 - an answer
    """The parent has threads, so a fork of it would not be sound."""


class Forked:
    """A job, as `subprocess.Popen` has them."""

    def __init__(self, parent: "Parent", number: int, fresh: Callable[[], "subprocess.Popen[bytes]"]) -> None:
        self._parent, self._number, self._fresh = parent, number, fresh
        self._instead: subprocess.Popen[bytes] | None = None
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """Its number, once it has one."""
        return self._parent.pid(self._number) if self._instead is None else self._instead.pid

    def poll(self) -> int | None:
        """The exit code, once it has ended; by a signal, its number below zero."""
        return self._look(wait=False)

    def wait(self) -> int:
        """The same, when it has ended."""
        while (code := self._look(wait=True)) is None:
            pass
        return code

    def _look(self, wait: bool) -> int | None:
        if self._instead is None and self.returncode is None:
            try:
                self.returncode = self._parent.code(self._number, wait)
            except Refused:
                self._instead = self._fresh()
        if self._instead is not None:
            self.returncode = self._instead.wait() if wait else self._instead.poll()
        return self.returncode

    def terminate(self) -> None:
        """Ask it to save and stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended; by its parent, who knows whether it has."""
        if self._instead is not None:
            self._instead.send_signal(number)
        elif self.returncode is None:
            self._parent.signal(self._number, number)


class Parent:
    """The other end of the line: asks for jobs, and hears how they ended."""

    def __init__(self, line: socket.socket, environment: Mapping[str, str], process: Any = None) -> None:
        self._line, self._process = line, process
        self.environment = dict(environment)
        self._count = 0
        self._codes: dict[int, int | None] = {}
        self._pids: dict[int, int] = {}
        self.refuses = False

    @classmethod
    def fresh(cls, environment: Mapping[str, str]) -> "Parent":
        """A new interpreter that will have this environment."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            process = subprocess.Popen(
                [sys.executable, "-m", "atoll.launch.forking", str(os.getpid()), str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # what fails in an import fails again in the job, which says it
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        return cls(here, environment, process)

    def start(
        self, request: Request, out: int, err: int, fresh: Callable[[], "subprocess.Popen[bytes]"]
    ) -> Forked:
        """Start a job that writes to these files; where a fork would not be sound, in a fresh interpreter."""
        self._count += 1
        job = Forked(self, self._count, fresh)
        if not self._send({"start": self._count, **vars(request)}, [out, err]):
            self._codes[self._count] = None
        return job

    def signal(self, number: int, which: int) -> None:
        """Send a job a signal; if the parent is gone, it has been told to stop already."""
        self._send({"signal": int(which), "to": number}, [])

    def code(self, number: int, wait: bool) -> int | None:
        """The exit code of a job that has ended."""
        while number not in self._codes:
            if not self._hear(wait):
                return None
        code = self._codes.pop(number)
        if code is None:
            self.refuses = True
            raise Refused
        return code

    def pid(self, number: int) -> int:
        """The number of a job's process, once it has one; 0 if it never had."""
        while number not in self._pids and number not in self._codes:
            self._hear(wait=True)
        return self._pids.get(number, 0)

    def _hear(self, wait: bool) -> bool:
        """Take in what the parent says next, if it has said anything."""
        try:
            message = self._line.recv(MESSAGE, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            message = b""
        if message:
            answer = json.loads(message)
            if answer["what"] == "pid":
                self._pids[answer["job"]] = answer["value"]
            else:
                self._codes[answer["job"]] = answer["value"]
        else:  # it was killed, and its jobs are asked to stop
            lost = range(1, self._count + 1)
            self._codes.update({job: -int(signal.SIGKILL) for job in lost if job not in self._codes})
        return True

    def _send(self, message: Mapping[str, Any], files: Sequence[int]) -> bool:
        try:
            socket.send_fds(self._line, [json.dumps(message).encode()], list(files))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let it go; jobs that still run are asked to stop."""
        self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


INHERITED: Parent | None = None
"""The parent for jobs of this process, if it is a fork itself and was given one."""


class Parents:
    """One for each environment, started when the first job wants it."""

    def __init__(self) -> None:
        self._parents: list[Parent] = []

    def of(self, environment: Mapping[str, str]) -> Parent | None:
        """The parent of jobs with this environment; none where they are better started afresh."""
        if not FORKS:
            return None
        inherited = [] if INHERITED is None else [INHERITED]
        for parent in (*inherited, *self._parents):
            if _fixed(parent.environment) == _fixed(environment):
                return None if parent.refuses else parent
        self._parents.append(Parent.fresh(environment))
        return self._parents[-1]

    def close(self) -> None:
        """Let all go."""
        for parent in self._parents:
            parent.close()
        self._parents.clear()


def inherited(environment: Mapping[str, str]) -> Parent | None:
    """The parent that this process was given, if it suits jobs with this environment."""
    if INHERITED is None or INHERITED.refuses or _fixed(INHERITED.environment) != _fixed(environment):
        return None
    return INHERITED


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(OURS)}

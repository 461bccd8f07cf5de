"""A process for a stranger's unit: no key, no network, no files of its user, and it dies with who started it.

`python -m atoll.net.sealed TIE HIDDEN MODULE ARGUMENTS…` is that process. Before anything of ours is loaded
it goes into a network namespace of its own, in which there is nothing to talk to, where the system permits
that; in any case Python refuses sockets, programs, and the folder with the key.
"""

import contextlib
import ctypes
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from atoll import threads
from atoll.launch import ties, warm

MODULE = "atoll.net.sealed"
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
"""Of unshare(2)."""
PASSED = (
    *("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TMPDIR"),
    *threads.WAITING,  # which we have set ourselves, or our user has
)
"""What a job may know of its surroundings; everything else may hold a secret."""
REFUSED = frozenset(
    {
        "socket.connect",
        "socket.bind",
        "socket.getaddrinfo",
        "socket.sendto",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.forkpty",
    }
)
"""What Python announces before it is done, and is not done here."""


def environment(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """That of a job: nothing but where programs are, a home that is its own folder, and what it is given."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    own = {"HOME": str(home), "ATOLL_RUNS": str(home), "ATOLL_CACHE": str(home / "cache")}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return {**passed, **threads.waiting(), **own, **offline, **variables}


@dataclass(frozen=True)
class Order:
    """What a sealed process is to do, and with what."""

    module: str
    arguments: Sequence[str]
    folder: Path
    """Where it is."""
    home: Path
    """What it takes for its user's home; the same for all jobs of a worker."""
    hidden: Path
    """The folder with the key."""
    variables: Mapping[str, str] = field(default_factory=dict)
    most: int = 0
    """Bytes that a file of it may have; 0 for any number."""
    imports: tuple[str, ...] = ()
    """What it will import, where it can be forked from a process that has."""

    def line(self, parent: int) -> list[str]:
        """The arguments of a sealed process."""
        tie = json.dumps({"parent": parent, "most": self.most})
        return [tie, str(self.hidden.resolve()), self.module, *self.arguments]

    def environment(self) -> dict[str, str]:
        """Its environment."""
        return environment(self.home, self.variables)


def start(
    module: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    hidden: Path,
    log: IO[bytes],
    variables: Mapping[str, str],
    most: int = 0,
) -> "subprocess.Popen[bytes]":
    """Start a sealed process whose home is where it is."""
    return started(Order(module, arguments, folder, folder, hidden, variables, most), log)


def started(order: Order, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a sealed process."""
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, *order.line(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=order.environment(),
        cwd=order.folder,
        start_new_session=True,  # Ctrl-C reaches the worker alone, which then asks the job to save
        close_fds=True,
    )


def fork(order: Order, parents: warm.Parents, log: Path) -> "warm.Forked | subprocess.Popen[bytes]":
    """The same as a fork of a process that has imported what it needs, where that is possible.

    That one has no key either: its environment is a job's, and it does nothing but fork.
    """
    variables = order.environment()
    parent = parents.of(variables) if not variables.get("CUDA_VISIBLE_DEVICES") else None

    def fresh() -> "subprocess.Popen[bytes]":
        with log.open("ab") as file:
            return started(order, file)

    if parent is None:
        return fresh()
    request = warm.Request(
        MODULE,
        order.line(0),
        variables,
        str(order.folder),
        "atoll-sealed",
        int(signal.SIGTERM),
        [MODULE, *order.imports],
    )
    with log.open("ab") as file:
        return parent.start(request, file.fileno(), file.fileno(), fresh)


def ended(process: "warm.Forked | subprocess.Popen[bytes]") -> int:
    """Its exit code, once it has ended; who is stopped while waiting stops it as well."""
    try:
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise


def run(order: Order, log: Path) -> int:
    """A sealed process from beginning to end, forked if there is somebody to fork from; its exit code."""
    with contextlib.closing(warm.Parents()) as parents:
        return ended(fork(order, parents, log))


def leave_the_network() -> bool:
    """Go where there is no network; False where the system does not permit that."""
    if sys.platform != "linux":
        return False
    unshare, user, group = ctypes.CDLL(None, use_errno=True).unshare, os.getuid(), os.getgid()
    if unshare(CLONE_NEWNET) == 0:
        return True
    if unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        try:
            Path("/proc/self", name).write_text(text, encoding="ascii")
        except OSError:
            return True  # we are nobody in there, which does for what we do
    return True


def refuse(hidden: str) -> None:
    """From now on Python refuses sockets, other programs, and to open what is hidden; for good."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in REFUSED:
            raise PermissionError(f"a sealed job may not use {event}")
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if path == hidden or path.startswith(f"{hidden}{os.sep}"):
                raise PermissionError("a sealed job may not read the key")

    sys.addaudithook(watch)


def limit(most: int) -> None:
    """No core files, and no file larger than this."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if most:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a full disk is an error, not a death
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def main() -> None:
    """Be the sealed process."""
    text, hidden, module, *arguments = sys.argv[1:]
    facts = json.loads(text)
    leave_the_network()
    ties.tie(int(signal.SIGTERM), int(facts["parent"]) or os.getppid())  # now: a new namespace unties
    limit(int(facts["most"]))
    refuse(hidden)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()

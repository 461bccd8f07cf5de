"""Jobs of Slurm and Ray, forked from a process that has loaded what they need.

Their engines start a fresh interpreter for every job, which loads torch for seconds. In tests that is
`tests/forged.py`, which loads nothing: it asks this process for a fork, passes signals on, and ends as it
does. Whose child it is, who dies with whom and how it ends is what it would be without.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from atoll.launch import warm
from tests.hasty import FORGE

CLIENT = Path(__file__).with_name("forged.py")


def command(process: ModuleType, spec: Any, at_death: signal.Signals) -> list[str]:
    """What `process.command` says where there is a forge."""
    tie = [
        str(int(at_death)),
        str(os.getpid()),
        os.environ[FORGE],
        json.dumps(process.graph.makers(spec.stage)),
    ]
    return [sys.executable, "-I", "-S", str(CLIENT), *tie, *spec.arguments()]


class Forge:
    """Forks for whoever asks at an address, in a thread of its own; a parent for each path to modules."""

    def __init__(self, address: str) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.bind(address)
        self._line.listen(64)
        self._end, self._ended = socket.socketpair()
        from tests import commands  # which jobs that are forked do not need

        given = commands.parent()
        self._parents = {given.environment["PYTHONPATH"]: given}
        self._jobs: dict[socket.socket, tuple[warm.Forked, int]] = {}
        self._ready = selectors.DefaultSelector()
        self._ready.register(given._line, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for one in (self._line, self._end):
            self._ready.register(one, selectors.EVENT_READ)
        while True:
            files = [key.fileobj for key, _ in self._ready.select()]
            if self._end in files:
                return
            for file in files:
                if file is self._line:
                    self._ready.register(self._line.accept()[0], selectors.EVENT_READ)
                elif file in self._jobs:
                    self._hear(file)
                elif isinstance(file, socket.socket) and file not in self._lines():
                    self._start(file)
            self._tell()

    def _lines(self) -> list[socket.socket]:
        return [parent._line for parent in self._parents.values()]

    def _start(self, client: socket.socket) -> None:
        message, files, _, _ = socket.recv_fds(client, warm.MESSAGE, 2)
        if len(files) < 2:
            self._forget(client)
            return
        while not message.endswith(b"\n") and (more := client.recv(warm.MESSAGE)):
            message += more
        request = warm.Request(**json.loads(message))
        path = request.environment.get("PYTHONPATH", "")
        if path not in self._parents:
            self._parents[path] = self._another(path, request.environment)
            self._ready.register(self._parents[path]._line, selectors.EVENT_READ)
        job = self._parents[path].start(request, files[0], files[1], self._unsound)
        self._jobs[client] = job, request.at_death
        for file in files:
            os.close(file)

    def _another(self, path: str, environment: dict[str, str]) -> warm.Parent:
        """Whoever only plays is a fork of ours, too."""
        from tests import commands

        ours = next(iter(self._parents.values()))
        return (
            commands.parent(ours, environment, "play")
            if commands.plays(path)
            else warm.Parent.fresh(environment)
        )

    def _unsound(self) -> Any:
        raise AssertionError("the process that jobs are forked from has threads")

    def _hear(self, client: socket.socket) -> None:
        """A signal to pass on; who asked for the job may also have died."""
        job, at_death = self._jobs[client]
        asked = client.recv(1)
        job.send_signal(asked[0] if asked else at_death)
        if not asked:
            self._ready.unregister(client)

    def _tell(self) -> None:
        """Say how jobs have ended."""
        for client, (job, _) in list(self._jobs.items()):
            code = job.poll()
            if code is not None:
                with contextlib.suppress(OSError):  # nobody is there any more
                    client.send(str(code).encode())
                del self._jobs[client]
                self._forget(client)

    def _forget(self, client: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._ready.unregister(client)
        client.close()

    def close(self) -> None:
        self._ended.send(b".")
        self._thread.join()
        for one in (self._line, self._end, self._ended, *self._jobs):
            one.close()
        for parent in self._parents.values():
            parent.close()
        self._ready.close()


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[str]:
    """The address of a forge."""
    address = str(folder / "forge")
    forge = Forge(address)
    try:
        yield address
    finally:
        forge.close()

"""`atoll` as a command: processes of their own, forked from one that has loaded what they need.

So a test of what a process does, how it ends and what it says does not cost seconds of loading torch. What is
loaded when is tested with fresh interpreters.
"""

import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from atoll import threads
from atoll.launch import warm

IMPORTS = [
    "atoll.cli",
    "atoll.train.jobs",
    "atoll.train.distil",
    "atoll.train.sharding",
    "atoll.data.encode",
    "atoll.data.partition",
    "atoll.sampling.stage",
    "atoll.pages.report",
    "atoll.study.results",
    "atoll.launch.local",
    "atoll.launch.table",
    "matplotlib.figure",
    "matplotlib.backends.backend_svg",
    "obstore",
]
FOR = {
    "host": ["atoll.net.host", "atoll.net.pages", "atoll.net.restore", "atoll.net.narrating"],
    "join": ["atoll.net.joining", "atoll.net.trial", "atoll.net.telling", "atoll.net.work"],
    "atoll.net.work": ["atoll.net.work"],
    "audit": ["atoll.net.audit", "atoll.net.sources"],
    "serve": ["atoll.serve.server"],
    "watch": ["atoll.serve.watching"],
    "component": ["atoll.components.making"],
    "add": ["atoll.components.adding"],
}
"""What else a command or a module needs: it is loaded for the first of its kind, and stays."""
ALONE = {
    "tests.launch.walled",
    "tests.traced",
    "doctor",
    "drop",
    "import",
    "plan",
    "sample",
    "serve",
    "show",
    "watch",
    "--help",
    "--version",
}
"""Commands that start no jobs, and need nobody to fork them from."""
ROOT = Path(__file__).parents[1]
_count = itertools.count()
_parents: dict[str, warm.Parent] = {}
"""One for each path on which modules are found."""


class Command:
    """`atoll …` at work, as `subprocess.Popen` with text in pipes."""

    def __init__(self, arguments, environment=None, folder=None, module="atoll.__main__"):
        self.arguments = [*map(str, arguments)]
        self._out, self._err = (_folder() / f"{next(_count)}.txt" for _ in range(2))
        variables = {**os.environ, **threads.variables(1), "PYTHONPATH": _path(), **(environment or {})}
        place, name = str(folder or ROOT), module.split(".")[0]
        more = [one for word in (module, *self.arguments[:2]) for one in FOR.get(word, [])]
        heir = not ALONE.intersection([module, *self.arguments[:1]])
        request = warm.Request(module, self.arguments, variables, place, name, 9, [*IMPORTS, *more], heir)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._job = _parent(variables).start(request, out.fileno(), err.fileno(), _unsound)
        self.pid = self._job.pid

    def poll(self):
        return self._job.poll()

    def wait(self, timeout=600):
        for _ in range(int(timeout / 0.02)):
            if self._job.poll() is not None:
                return self._job.returncode
            time.sleep(0.02)
        raise subprocess.TimeoutExpired(self.arguments, timeout)

    def communicate(self, timeout=600):
        self.wait(timeout)
        return self._out.read_text(), self._err.read_text()

    @property
    def returncode(self):
        return self._job.returncode

    def line(self):
        """The first line that it says, once it has."""
        while "\n" not in (said := self._out.read_text()):
            assert self.poll() is None, self.communicate()
            time.sleep(0.02)
        return said.partition("\n")[0]

    def send_signal(self, number):
        self._job.send_signal(number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self._job.kill()


def _unsound():
    raise AssertionError("the process that commands are forked from has threads")


@functools.cache
def _folder():
    """Where what commands say is written down."""
    return Path(tempfile.mkdtemp(prefix="atoll-commands-"))


def _path():
    known = os.environ.get("PYTHONPATH", "")
    return (
        known if str(ROOT) in known.split(os.pathsep) else os.pathsep.join(filter(None, [str(ROOT), known]))
    )


def _parent(variables):
    path = variables.get("PYTHONPATH", "")
    if path not in _parents:
        first, _, rest = path.partition(os.pathsep)
        base = {**variables, "PYTHONPATH": rest}
        if plays(path):
            _parents[path] = parent(_parent(base), variables, "play")
        elif Path(first, FORKED).is_file():
            _parents[path] = parent(_parent(base), variables, "more", first)
        else:
            _parents[path] = warm.Parent.fresh(variables)
    return _parents[path]


PLAYS = "plays"
"""A file of this name is where modules are found by processes that know stages which take no time."""


FORKED = "forked"
"""A folder with a file of this name adds modules to those that others find, and takes the place of none: its
processes are forked from one that has loaded those, and customized by its `sitecustomize`."""


def plays(path):
    return Path(path.partition(os.pathsep)[0], PLAYS).is_file()


def parent(of=None, variables=None, *arguments):
    """Another one with what this one has loaded, for somebody else; see `tests.parent`."""
    variables = variables or {**os.environ, **threads.variables(1), "PYTHONPATH": _path()}
    request = warm.Request("tests.parent", [*arguments], variables, str(ROOT), "parent", 9, IMPORTS)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there, open(os.devnull, "wb") as nothing:
        (of or _parent(variables)).start(request, there.fileno(), nothing.fileno(), _unsound)
    return warm.Parent(here, variables)


def inherit(given):
    """Fork from this one, which somebody else has begun; those of the process that we were are not ours."""
    _parents.clear()
    _parents[given.environment["PYTHONPATH"]] = given
    _folder.cache_clear()


def run(*arguments, environment=None, folder=None, module="atoll.__main__"):
    """The command from beginning to end."""
    command = Command(arguments, environment, folder, module)
    out, err = command.communicate()
    return subprocess.CompletedProcess(["atoll", *command.arguments], command.returncode, out, err)


def python(program, *arguments, **options):
    """`python PROGRAM …` from beginning to end."""
    return run(program, *arguments, **options, module="tests.program")


def close():
    for parent in _parents.values():
        parent.close()
    _parents.clear()
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder())
        _folder.cache_clear()


class Shared:
    """A parent for what tests start by our own functions: the same that commands are forked from.

    It stands for any environment: there is one for each path on which modules are found.
    """

    refuses = False

    @property
    def environment(self):
        return {**os.environ, **threads.variables(1)}

    def start(self, request, *rest):
        return _parent({**request.environment, "PYTHONPATH": _path()}).start(request, *rest)

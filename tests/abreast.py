"""Tests by several processes, `pytest --abreast 4`, forked from the one that has collected them.

So what tests import is loaded once, and not by each. Files go to processes as a whole, in the order of the
tests; those that share something dear go together. How tests end is told by the one that has forked them.
"""

import functools
import json
import os
import selectors
import signal
import socket
import struct
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from atoll.launch import ties

Group = list[pytest.Item]
NUMBER = struct.Struct("I")


@dataclass(frozen=True)
class Crew:
    """So many processes that share these tests; each begins by this with its number among all processes."""

    number: int
    groups: list[Group]
    begin: Callable[[int], None] = lambda _: None
    remark: str = ""
    """Told with the names of its tests, which another crew may run as well."""


class Line:
    """What one process says, and the test that it is at."""

    def __init__(self, pid: int, end: socket.socket, remark: str) -> None:
        self.pid, self.end, self.remark = pid, end, remark
        self.at: pytest.Item | None = None
        self.over = False
        self._rest = b""

    def said(self) -> list[tuple[str, Any]]:
        """What is new, once there is something; an end that was not announced is a death."""
        more = self.end.recv(1 << 16)
        *whole, self._rest = (self._rest + more).split(b"\n")
        return [tuple(json.loads(line)) for line in whole] if more else [("died", None)]


def grouped(items: Iterable[pytest.Item], name: Callable[[str], str]) -> list[Group]:
    """Tests by the name of what they belong to, in the order of the first of each."""
    groups: dict[str, Group] = {}
    for item in items:
        groups.setdefault(name(item.nodeid), []).append(item)
    return list(groups.values())


def run(session: pytest.Session, *crews: Crew) -> None:
    """Run the tests of all crews at once."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter.showfspath = False  # results of several files come mixed
    session.testscollected = sum(len(group) for crew in crews for group in crew.groups)
    queues = [_queue(len(crew.groups)) for crew in crews]
    lines: list[Line] = []
    try:
        for crew, queue in zip(crews, queues, strict=True):
            lines += [_fork(session, crew, queue, len(lines) + index) for index in range(crew.number)]
        _hear(session, lines)
    finally:
        _end(queues, lines)


def _queue(length: int) -> int:
    """Numbers to be read, each by one process."""
    queue, given = os.pipe()
    os.write(given, b"".join(NUMBER.pack(index) for index in range(length)))
    os.close(given)
    return queue


def _fork(session: pytest.Session, crew: Crew, queue: int, number: int) -> Line:
    here, there = socket.socketpair()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which only libraries have here
        pid = os.fork()
    if pid:
        there.close()
        return Line(pid, here, crew.remark)
    code = 1
    try:
        here.close()
        ties.tie(signal.SIGINT, parent)  # nobody hears whose parent was killed
        crew.begin(number)
        with there.makefile("w", encoding="utf-8") as said:
            _work(session, _groups_of(queue, crew.groups), Voice(session.config, said), f"worker-{number}")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _groups_of(queue: int, groups: list[Group]) -> Iterator[Group]:
    """Whatever nobody else has taken yet."""
    while number := os.read(queue, NUMBER.size):
        yield groups[NUMBER.unpack(number)[0]]


class Voice:
    """Tells how tests end, in place of who would print it."""

    def __init__(self, config: pytest.Config, file: Any) -> None:
        self._config, self._file = config, file

    def say(self, what: str, value: Any) -> None:
        self._file.write(json.dumps([what, value], default=str) + "\n")
        self._file.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.say(
            "report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        )


class Following:
    """The test after the last of a group: only when that one is taken down another group is taken."""

    def __init__(self, groups: Iterator[Group]) -> None:
        self._groups = groups

    @functools.cached_property
    def group(self) -> Group:
        return next(self._groups, [])

    def __bool__(self) -> bool:
        return bool(self.group)

    def listchain(self) -> list[Any]:
        """What is still needed: see `SetupState.teardown_exact`."""
        return self.group[0].listchain()


def _work(session: pytest.Session, groups: Iterator[Group], voice: Voice, name: str) -> None:
    """Be one of several processes."""
    _settle(session.config, name)
    session.config.pluginmanager.register(voice, "voice")
    following = Following(groups)
    try:
        while following:
            group, following = following.group, Following(groups)
            for item, nextitem in zip(group, [*group[1:], following], strict=True):
                voice.say("at", item.nodeid)
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    finally:  # who is interrupted leaves no servers behind
        session._setupstate.teardown_exact(None)
    voice.say("ended", name)


def _settle(config: Any, name: str) -> None:
    """Have files and a voice of one's own: a fork shares those of its parent. And be interruptible."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have taken it from us
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter._tw._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it is needed to the end
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir()


def _hear(session: pytest.Session, lines: list[Line]) -> None:
    """Tell what processes say, until all have ended."""
    items = {item.nodeid: item for item in session.items}
    with selectors.DefaultSelector() as ready:
        for line in lines:
            ready.register(line.end, selectors.EVENT_READ, line)
        while ready.get_map():
            for key, _ in ready.select():
                for what, value in key.data.said():
                    if what in ("ended", "died"):
                        key.data.over = True
                        ready.unregister(key.fileobj)
                    _tell(session, key.data, what, items.get(value) if what == "at" else value)


def _tell(session: pytest.Session, line: Line, what: str, value: Any) -> None:
    hook = session.config.hook
    if what == "at":
        line.at = value
        hook.pytest_runtest_logstart(nodeid=value.nodeid + line.remark, location=value.location)
    if what in ("report", "died"):
        report = _death(line) if what == "died" else _report(session.config, value)
        report.nodeid += line.remark
        hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _report(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    if isinstance(report.longrepr, list):  # where and why something was skipped, which JSON makes a list of
        report.longrepr = tuple(report.longrepr)
    return report


def _death(line: Line) -> pytest.TestReport:
    name, location = (line.at.nodeid, line.at.location) if line.at else ("tests", ("tests", None, "tests"))
    problem = f"the process of {name} died; the tests that it would have run next were not run"
    return pytest.TestReport(name, location, {}, "failed", problem, "call")


def _end(queues: list[int], lines: list[Line]) -> None:
    """Nobody is left behind, neither after the last test nor after somebody has had enough."""
    for queue in queues:
        while os.read(queue, 1 << 16):
            pass
        os.close(queue)
    for line in lines:
        if not line.over:
            os.kill(line.pid, signal.SIGINT)
        line.end.close()
    for line in lines:
        os.waitpid(line.pid, 0)

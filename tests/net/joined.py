"""A served run and workers in threads: the real coordinator, the real client, jobs that need no process.

Jobs are played back from one run that was really done, so that a whole run costs as much as its requests.
"""

import contextlib
import random
import threading
import time
from typing import Any

import httpx

from atoll.errors import AtollError, Interrupted
from atoll.net import host, leasing, units, work
from atoll.net.home import LOG, RESOLVED, UNIT
from atoll.net.joining import Joining
from atoll.net.limits import Limits
from atoll.net.protocol import Numerics
from atoll.runs import Run, write_json
from atoll.serve.listening import Server
from tests.net.doing import Network

TERMS = leasing.Terms(heartbeat=0.2)
CHOICES = host.Choices(quorum=1, every=2, retry=0.05, price=10**12, pulse=0.2, terms=TERMS)


class Quiet:
    """Is told everything, and keeps the news."""

    def __init__(self):
        self.lines: list[str] = []
        self.moments: list[str] = []

    def news(self, sentence):
        self.lines.append(sentence)

    def now(self, sentence):
        self.moments.append(sentence)


class Ended:
    """A job that is over."""

    def __init__(self, code):
        self.code = code

    def poll(self):
        return self.code

    def wait(self):
        return self.code

    def send_signal(self, number):
        pass


def inline(held, home, limits):
    """A unit done here and now, in this process."""
    try:
        work.perform(held.folder / UNIT, held.folder / RESOLVED, held.run)
    except AtollError as error:
        (held.folder / LOG).write_text(f"atoll: {error}\n")
        return Ended(1)
    except Interrupted:
        return Ended(75)
    return Ended(0)


class Recorded:
    """Units as they were done once, by name."""

    def __init__(self, config, folder):
        self.network = Network(config, folder, segment=1000)
        self.units: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.chains = self.network.chains
        self.done: list[str] = []
        accept = self.network.accept

        def noting(unit, place, chain=()):
            self.asked.append(unit)
            self.units[unit.name] = (
                *work.made_files(unit, Run(place, config)),
                work.read_chain(place.parent / work.CHAIN),
            )
            accept(unit, place, chain)

        self.network.accept = noting
        self.run = self.network.finish()
        self.table = self.network.table

    def __call__(self, held, home, limits):
        outputs, removed, chain = self.units[held.offer.unit.name]
        self.done.append(held.offer.unit.name)
        for path in removed:
            (held.run / path).unlink()
        self.network.lay_out(outputs, held.run)
        write_json(held.chain, {str(step): link for step, link in chain.items()})
        facts = {"outputs": [file.model_dump(mode="json") for file in outputs], "removed": list(removed)}
        write_json(held.made, {**facts, "numerics": Numerics().model_dump(mode="json")})
        return Ended(0)


@contextlib.contextmanager
def served(run, choices=CHOICES, **given):
    """A published run at an address, in a thread."""
    with host.opened(run, choices, **given) as hosted:
        addresses: list[str] = []
        here = threading.Event()

        def ready(url):
            addresses.append(url)
            here.set()

        server = Server(hosted.app(), "127.0.0.1", 0, ready)
        thread = threading.Thread(target=server.run)
        keeper = hosted.keep()
        keeper.start()
        thread.start()
        here.wait(600)
        try:
            yield hosted, addresses[0]
        finally:
            server.should_exit = True
            thread.join()
            keeper.stop()


def lent(url, folder, **given):
    """A machine for a coordinator; it was measured before."""
    folder.mkdir(parents=True, exist_ok=True)
    limits = given.pop("limits", Limits(cpus=1, gpus=0))
    facts = {"speed": 1e15, "memory": 1 << 40, "gpu": False, "numerics": Numerics().model_dump()}
    write_json(folder / "measured.json", {**facts, "settings": limits.variables(), "date": time.time()})
    return Joining(url, folder, given.pop("tell", Quiet()), limits, seconds=0.0, **given)


class Killed(BaseException):
    """As by SIGKILL: nothing that would tidy up is done."""


class Faulty(httpx.BaseTransport):
    """Requests that fail before, during or after the server acts; answers that are cut or damaged; deaths."""

    KINDS = ("before", "after", "half", "503", "cut", "damaged", "killed")

    def __init__(self, seed=0, share=0.0, kinds=KINDS, transport=None):
        self.random, self.share, self.kinds = random.Random(seed), share, kinds
        self.inner = transport or httpx.HTTPTransport()
        self.happened: list[str] = []
        self.guard = threading.Lock()

    def handle_request(self, request):
        with self.guard:
            kind = self.random.choice(self.kinds) if self.random.random() < self.share else ""
            if kind:
                self.happened.append(kind)
        if kind == "killed" and threading.current_thread().name.startswith("atoll-worker"):
            kind = "after"  # only the whole process can be killed
        if kind == "before":
            raise httpx.ConnectError("refused", request=request)
        if kind == "503":
            return httpx.Response(503, request=request)
        if kind == "half" and request.method == "PUT":
            self.inner.handle_request(self._half(request)).close()
            raise httpx.WriteError("broken pipe", request=request)
        answer = self.inner.handle_request(request)
        answer.read()
        if kind == "killed":
            raise Killed
        if kind in ("after", "half"):
            raise httpx.ReadError("reset", request=request)
        data = answer.content
        if kind == "cut" and request.method == "GET" and len(data) > 1:
            raise httpx.RemoteProtocolError("peer closed connection", request=request)
        if kind == "damaged" and request.method == "GET" and "/files/" in str(request.url) and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        return httpx.Response(
            answer.status_code, headers=self._headers(answer), content=data, request=request
        )

    def close(self):
        self.inner.close()

    @staticmethod
    def _headers(answer):
        return [(name, value) for name, value in answer.headers.items() if name != "content-encoding"]

    @staticmethod
    def _half(request):
        """What arrives of a body when the line breaks: its signature does not fit any more."""
        body = request.read()
        headers = [(name, value) for name, value in request.headers.items() if name != "content-length"]
        return httpx.Request(request.method, request.url, headers=headers, content=body[: len(body) // 2])


def work_on(joining, once=False):
    """A worker until its end, or its death."""
    from atoll.net import joining as room

    try:
        return room.join(joining, once=once)
    except Killed:
        return {"ended": "killed"}


def same_table(hosted, recorded):
    """Whether the run has exactly the files that were recorded; how many."""
    from atoll.net import filing

    with hosted.coordinator.database.reading() as session:
        table = filing.table_of(session)
    there = {path: file.sha256 for path, file in table.items()}
    assert there == {path: file.sha256 for path, file in recorded.table.items()}
    assert units.finished(hosted.run, table)
    return len(there)

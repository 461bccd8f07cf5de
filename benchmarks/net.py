"""One coordinator under the requests of ten thousand workers, and from where on another database is better.

Two thousand volunteers with the real client, keys and connections of their own hold leases, send heartbeats,
upload states and hand in results; each is as busy as five real ones, whatever the answers take: of 10,000
holders each is heard every 200 seconds, has a lease of two hours and sends one state on the way, which makes
60 requests a second. The coordinator is a process of its own; the volunteers share the machine with it, so
that times are taken on both sides: how long they wait, and what passes within it from request to answer.
Then: what a request costs it with 100 and with 10,000 machines known, and how many it answers at most, on
SQLite and on PostgreSQL with one and with two processes. `--small` only shows that everything runs.
"""

import argparse
import contextlib
import heapq
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.net import servers

from atoll.errors import AtollError, Interrupted
from atoll.net.client import Client
from atoll.net.database import Database
from atoll.net.leasing import Terms
from atoll.net.migrating import migrate
from atoll.net.protocol import Capabilities, LeaseOffer
from benchmarks._crowd import TIMES, Chains, Volunteer, fill
from benchmarks._shown import show

LEASE = 7200.0
"""Seconds of a real worker from its lease to its result; its heartbeats are as rare as it is told."""
SIZE = Chains(1, 1, 1, 1).size
CAPABLE = Capabilities(gpu=True, memory=1 << 34, disk=1 << 40)
THREADS = 64


class Load(NamedTuple):
    """How much of everything."""

    workers: int = 2000
    real: int = 10_000
    """Workers whose requests they make."""
    seconds: float = 120.0
    ramp: float = 90.0
    known: tuple[int, int] = (100, 10_000)
    requests: int = 1500
    """Heartbeats by which the cost of one is measured."""
    hold: float = 10.0
    """Seconds for which as many requests are made as are answered."""
    ready: int = 150
    """Of each connection at most."""


SMALL = Load(workers=20, real=1200, seconds=3.0, ramp=1.0, known=(5, 50), requests=40, hold=0.5, ready=5)


@dataclass
class Seen:
    """Every request: its kind, when it began, how long it took; and every fault."""

    times: list[tuple[str, float, float]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    lags: list[float] = field(default_factory=list)
    """Seconds by which volunteers acted later than they wanted to: this program's own fault."""

    def fault(self, kind: str, /, **facts: Any) -> None:
        """As the client tells of it."""
        self.faults[f"{kind}: {str(facts.get('problem', ''))[:60]}"] += 1

    def since(self, moment: float) -> dict[str, list[float]]:
        """Milliseconds by kind of request, from a moment on."""
        kinds: dict[str, list[float]] = {}
        for kind, began, seconds in self.times:
            if began >= moment:
                kinds.setdefault(kind, []).append(1000 * seconds)
        return kinds


class Timed(httpx.HTTPTransport):
    """A connection of one volunteer's own, which looks at the clock."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(verify=False)
        self._seen = seen

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request from its first byte to the last of its answer."""
        since = time.perf_counter()
        answer = super().handle_request(request)
        answer.read()
        words = request.url.path.split("/")
        kind = f"{request.method} {words[-1] if len(words[-1]) < 30 else words[-2]}"
        self._seen.times.append((kind, since, time.perf_counter() - since))
        if answer.status_code >= 500:
            self._seen.faults[f"status {answer.status_code}"] += 1
        return answer


def volunteer(address: str, seen: Seen) -> Volunteer:
    """A new machine."""
    key = Ed25519PrivateKey.generate()
    return Volunteer(Client([address], key, event=seen.fault, transport=Timed(seen)), SIZE)


@dataclass
class Life:
    """What a volunteer does next: joins, asks for work, is heard of, hands on a state, hands in a result."""

    one: Volunteer
    pace: float
    """How much faster than a real worker."""
    folder: Path
    source: random.Random
    ends: float = 0.0
    joined: bool = False
    halfway: bool = False

    def act(self) -> float:
        """One of them; seconds until the next."""
        lease, now = LEASE / self.pace, time.perf_counter()
        if not self.joined:
            self.one.join()
            self.joined = True
        elif self.one.offer is None:
            first = not self.ends
            if not isinstance(self.one.lease(CAPABLE), LeaseOffer):
                return 5.0
            self.ends = now + lease * (self.source.random() if first else 1.0)
            self.halfway = False
        elif now >= self.ends:
            self.one.submit(self.folder)
            return 0.0
        elif not self.halfway and now > self.ends - lease / 2:
            self.halfway = True
            self.one.hand_on(self.one.offer.unit.first + self.one.offer.unit.every, self.folder)
        elif not self.one.beat(self.one.offer.unit.first):
            self.one.offer = None
        return self.source.uniform(0.8, 1.2) * self.one.every / self.pace


def live(lives: Sequence[Life], until: float, ramp: float, seen: Seen) -> None:
    """Everybody acts when its time has come, until a moment; a hundred threads are enough for that."""
    ready: list[tuple[float, int]] = []
    guard = threading.Condition()
    begin = time.perf_counter()
    for number in range(len(lives)):
        heapq.heappush(ready, (begin + ramp * number / len(lives), number))

    def turn(due: float, number: int) -> None:
        seen.lags.append(time.perf_counter() - due)
        try:
            wait = lives[number].act()
        except (AtollError, Interrupted) as error:
            seen.faults[f"{type(error).__name__}: {error}"[:100]] += 1
            lives[number].one.offer, wait = None, 1.0
        with guard:
            heapq.heappush(ready, (time.perf_counter() + wait, number))
            guard.notify()

    with ThreadPoolExecutor(THREADS) as pool:
        while (now := time.perf_counter()) < until:
            with guard:
                if ready and ready[0][0] <= now:
                    pool.submit(turn, *heapq.heappop(ready))
                    continue
                guard.wait(min(0.05, max(0.001, ready[0][0] - now)) if ready else 0.05)


class Process(NamedTuple):
    """A coordinator's."""

    address: str
    number: int

    @property
    def memory(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self.number}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def seconds(self) -> float:
        """Of processor time so far."""
        words = Path(f"/proc/{self.number}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def coordinators(
    folder: Path, url: str, trainings: int, count: int = 1, beats: float = Terms.beats
) -> Iterator[list[Process]]:
    """Processes that serve one run from one database, and hear of holders so many times a second."""
    processes = []
    with contextlib.ExitStack() as stack:
        for _ in range(count):  # one after the other: the first makes the keys
            words = [str(folder), url, str(trainings), str(beats)]
            command = [sys.executable, "-m", "benchmarks._crowd", *words]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.terminate)
            assert process.stdout is not None
            processes.append(Process(json.loads(process.stdout.readline())["address"], process.pid))
        yield processes


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """The middle, what all but one in a hundred take, the longest."""
    ordered = sorted(milliseconds)
    last = len(ordered) - 1
    return {
        "num": len(ordered),
        "median": round(statistics.median(ordered), 1),
        "p99": round(ordered[round(0.99 * last)], 1),
        "longest": round(ordered[-1], 1),
    }


def crowd(load: Load, folder: Path) -> dict[str, Any]:
    """All volunteers at once, at the pace of the real ones that they stand for."""
    database = Database(str(folder / "crowd.db"))
    migrate(database)
    fill(database, max(0, load.real - load.workers))
    database.close()
    seen, source = Seen(), random.Random(0)
    pace = load.real / load.workers
    beats = Terms.beats / pace  # so that each is told what one of the real ones would be
    with coordinators(folder, str(folder / "crowd.db"), load.workers + 50, 1, beats) as (process,):
        lives = [Life(volunteer(process.address, seen), pace, folder, source) for _ in range(load.workers)]
        begin = time.perf_counter()
        measured = begin + load.ramp + Terms.rarest / pace
        notes: list[tuple[int, float]] = []
        timer = threading.Timer(measured - begin, lambda: notes.append((process.memory, process.seconds)))
        timer.start()
        live(lives, measured + load.seconds, load.ramp, seen)
        timer.join()
        memory, busy = process.memory, process.seconds
        for life in lives:
            life.one.client.close()
    own = [1000 * seconds for since, seconds in json.loads((folder / TIMES).read_text()) if since >= measured]
    kinds = seen.since(measured)
    every = [value for values in kinds.values() for value in values]
    return {
        "workers": load.workers,
        "as busy as": load.real,
        "requests per second": round(len(every) / load.seconds, 1),
        "milliseconds": {
            "all": percentiles(every),
            **{name: percentiles(kinds[name]) for name in sorted(kinds)},
        },
        "milliseconds within the coordinator": percentiles(own),
        "errors": dict(seen.faults),
        "share of a core": round((busy - notes[0][1]) / load.seconds, 2),
        "MB before and after": [round(notes[0][0] / 1e6, 1), round(memory / 1e6, 1)],
        "our own lag, p99, ms": round(1000 * sorted(seen.lags)[round(0.99 * (len(seen.lags) - 1))], 1),
        "load of the machine": round(os.getloadavg()[0], 1),
    }


def costs(load: Load, folder: Path, known: int) -> dict[str, float]:
    """Processor milliseconds of a coordinator per request, with so many machines known."""
    url = str(folder / f"known-{known}.db")
    database = Database(url)
    migrate(database)
    fill(database, known)
    database.close()
    seen, spent = Seen(), {}
    with coordinators(folder, url, 60) as (process,):
        crew = [volunteer(process.address, seen) for _ in range(20)]
        for one in crew:
            one.join()
            one.lease(CAPABLE)
        rounds = max(1, load.requests // len(crew))
        spent["heartbeat"] = _spent(process, rounds * len(crew), lambda: _each(crew, _beat), rounds)
        turns = max(1, rounds // 5)
        spent["lease, upload, submit"] = _spent(
            process, turns * len(crew), lambda: _each(crew, partial(_work, folder=folder)), turns
        )
        for one in crew:
            one.client.close()
    if seen.faults:
        raise AtollError(f"requests failed: {dict(seen.faults)}")
    return spent


def _each(crew: Sequence[Volunteer], act: Callable[[Volunteer], None]) -> None:
    for one in crew:
        act(one)


def _beat(one: Volunteer) -> None:
    assert one.offer is not None
    one.beat(one.offer.unit.first)


def _work(one: Volunteer, folder: Path) -> None:
    one.submit(folder)
    one.lease(CAPABLE)


def _spent(process: Process, count: int, act: Callable[[], Any], rounds: int) -> float:
    before = process.seconds
    for _ in range(rounds):
        act()
    return 1000 * (process.seconds - before) / count


def send(requests: Sequence[bytes], address: str, until: float) -> list[float]:
    """Send one after the other over one connection until a moment; seconds of each."""
    host, _, port = address.removeprefix("http://").partition(":")
    times = []
    with socket.create_connection((host, int(port))) as line:
        for request in requests:
            since = time.perf_counter()
            if since > until:
                break
            line.sendall(request)
            answer = _answer(line)
            times.append(time.perf_counter() - since)
            if b" 200 " not in answer[:20]:
                raise AtollError(f"a heartbeat was not taken: {answer[:200]!r}")
    return times


def _answer(line: socket.socket) -> bytes:
    """One answer as it comes, in however many pieces."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += line.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += line.recv(1 << 16)
    return head


def most(load: Load, folder: Path, url: str, count: int) -> dict[str, float]:
    """Heartbeats that are answered in a second, asked by as many as there are connections.

    They are signed beforehand: on this machine whoever asks would else need as much as who answers.
    """
    seen = Seen()
    with coordinators(folder, url, 2 * THREADS, count) as processes:
        crew = [volunteer(processes[number % count].address, seen) for number in range(THREADS)]
        for one in crew:
            one.join()
            one.lease(CAPABLE)
        ready = [one.ready_beats(load.ready) for one in crew]
        begin = time.perf_counter()
        before = sum(process.seconds for process in processes)
        with ThreadPoolExecutor(THREADS) as pool:
            sent = [
                pool.submit(send, requests, one.client.addresses[0], begin + load.hold)
                for requests, one in zip(ready, crew, strict=True)
            ]
            times = [seconds for future in sent for seconds in future.result()]
        seconds = time.perf_counter() - begin
        busy = sum(process.seconds for process in processes) - before
        for one in crew:
            one.client.close()
    return {
        "heartbeats per second": round(len(times) / seconds, 1),
        "p99 ms": percentiles([1000 * one for one in times])["p99"],
        "cores": round(busy / seconds, 2),
        "processor ms per heartbeat": round(1000 * busy / len(times), 2),
        "errors": sum(seen.faults.values()),
    }


def databases(load: Load, folder: Path) -> dict[str, dict[str, float]]:
    """SQLite against PostgreSQL, by one process and by two."""
    answers: dict[str, dict[str, float]] = {}
    for name in ("SQLite", "PostgreSQL", "PostgreSQL, two processes"):
        place = folder / name.replace(" ", "-")
        place.mkdir()
        if name == "SQLite":
            answers[name] = most(load, place, str(place / "atoll.db"), 1)
            continue
        with servers.postgresql() as server:
            answers[name] = most(load, place, server.new(), 2 if "two" in name else 1)
    return answers


def measure(load: Load, parts: Sequence[str]) -> dict[str, Any]:
    """The parts that were asked for."""
    detail: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="atoll-net-") as name:
        folder = Path(name)
        if "crowd" in parts:
            detail["crowd"] = crowd(load, folder)
            ratios["250 ms, p99 of all requests"] = 250 / detail["crowd"]["milliseconds"]["all"]["p99"]
            before, after = detail["crowd"]["MB before and after"]
            ratios["its memory before, after"] = before / after
        if "growth" in parts:
            few, many = (costs(load, folder, known) for known in load.known)
            detail["processor ms per request by machines known"] = dict(
                zip(map(str, load.known), (few, many), strict=True)
            )
            for kind in few:
                ratios[f"{kind} with {load.known[0]} known, {load.known[1]}"] = few[kind] / max(
                    1e-9, many[kind]
                )
        if "databases" in parts:
            detail["databases"] = answers = databases(load, folder)
            base = answers["SQLite"]["heartbeats per second"]
            for other in answers:
                if other != "SQLite":
                    ratios[f"SQLite against {other}"] = base / answers[other]["heartbeats per second"]
    return {"benchmark": "net", "ratios": ratios, "detail": detail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, help="of the crowd")
    parser.add_argument("--only", nargs="+", default=["crowd", "growth", "databases"])
    options = parser.parse_args()
    load = SMALL if options.small else Load()
    if options.seconds:
        load = load._replace(seconds=options.seconds)
    show(measure(load, options.only), options.json)


if __name__ == "__main__":
    main()

"""A coordinator with trainings that nobody trains, and volunteers who ask it everything that real ones do.

`python -m benchmarks._crowd FOLDER DATABASE TRAININGS` serves one. Signatures, transactions, log, ledger,
uploads and checks are the real ones; only a state's bytes are made up, the same for the same step.
"""

import hashlib
import json
import secrets
import signal
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import insert
from starlette.types import ASGIApp, Receive, Scope, Send

from atoll.net import keys, ledger, log, signing
from atoll.net.api import create_app
from atoll.net.artifacts import Artifacts
from atoll.net.books import Books
from atoll.net.client import Client
from atoll.net.coordinator import Coordinator, Limits
from atoll.net.database import Database
from atoll.net.filing import add_files
from atoll.net.judging import Judge, advance
from atoll.net.keeping import Keeper
from atoll.net.leasing import Terms
from atoll.net.migrating import migrate
from atoll.net.pages import ROUTERS
from atoll.net.protocol import (
    Capabilities,
    File,
    Heartbeat,
    LeaseOffer,
    Micro,
    Numerics,
    Progress,
    Receipt,
    Refusal,
    Result,
    Submission,
    Unit,
)
from atoll.net.statements import Signer
from atoll.net.tables import Account, Device, LeaseRow, SubmissionRow, TaskRow
from atoll.net.verification.asking import state_name
from atoll.serve.listening import Server
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.store import open_store

RUN = "c" * 64
TIMES = "times.json"
"""In the folder of a coordinator that has ended: how long its answers took."""
MODELS = (log, ledger)
"""Whose tables must be known."""


def state(stage: str, step: int, size: int) -> bytes:
    """The state of a training at a step: a safetensors file of about this size, always the same."""
    data = hashlib.shake_256(f"{stage} {step}".encode()).digest(max(16, size - 100))
    header = {"weights": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@lru_cache(1 << 15)
def described(stage: str, step: int, size: int) -> tuple[File, bytes]:
    """A state as a file of the run."""
    data = state(stage, step, size)
    path = f"{stage.replace(' ', '/')}/state/{state_name(step)}"
    return File(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data)), data


def chain(unit: Unit, last: int, size: int) -> tuple[str, ...]:
    """Hashes of the states from a unit's first step to another."""
    points = [*range(unit.first, last, unit.every), last]
    return tuple(described(unit.stage, step, size)[0].sha256 for step in points)


@dataclass
class Chains:
    """So many trainings that do not know of each other, cut into segments."""

    trainings: int
    steps: int
    segment: int
    every: int
    flops: float = 1e15
    """Of one whole training."""
    size: int = 200
    """Bytes of a state."""
    _units: dict[tuple[str, int], Unit] = field(default_factory=dict)

    def steps_of(self, table: Mapping[str, File]) -> dict[str, int]:
        """How far each training is."""
        known: dict[str, int] = {}
        for path in table:
            folder, _, name = path.partition("/state/step-")
            known[folder.replace("/", " ")] = int(name.partition(".")[0])
        return known

    def ready(self, table: Mapping[str, File]) -> list[Unit]:
        """The next segment of each."""
        known = self.steps_of(table)
        names = (f"expert {index}" for index in range(self.trainings))
        return [
            self._unit(name, known.get(name, 0), table) for name in names if known.get(name, 0) < self.steps
        ]

    def _unit(self, stage: str, first: int, table: Mapping[str, File]) -> Unit:
        if (stage, first) not in self._units:
            path = f"{stage.replace(' ', '/')}/state/{state_name(first)}"
            inputs = (table[path],) if path in table else ()
            whole = Unit(run=RUN, name="", stage=stage, role="train", first=first, every=self.every, gpu=True)
            unit = whole.model_copy(update={"inputs": inputs})
            self._units[stage, first] = self._until(unit, min(self.steps, first + self.segment))
        return self._units[stage, first]

    def _until(self, unit: Unit, last: int) -> Unit:
        share = (last - unit.first) / self.steps
        facts = {"work": self.flops * share, "price": max(1, round(1000 * share))}
        return unit.model_copy(update={**facts, "last": last, "name": f"{unit.stage} @ {unit.first}..{last}"})

    def finished(self, table: Mapping[str, File]) -> bool:
        """Whether all are at their ends."""
        known = self.steps_of(table)
        return len(known) == self.trainings and all(step >= self.steps for step in known.values())

    def shortened(self, unit: Unit, steps: int) -> Unit:
        """The same segment with fewer steps."""
        taken = max(unit.every, steps // unit.every * unit.every)
        return unit if unit.first + taken >= unit.last else self._until(unit, unit.first + taken)

    def state(self, unit: Unit) -> int:
        """The same for all."""
        return self.size

    def allows(self, unit: Unit, path: str) -> bool:
        """States of its own stage."""
        return path.startswith(f"{unit.stage.replace(' ', '/')}/state/")


def coordinator(
    folder: Path, url: str, plan: Chains, *, clock: Clock = CLOCK, terms: Terms | None = None, **limits: float
) -> Coordinator:
    """The real one, over a folder and a database."""
    database = Database(url)
    migrate(database)
    artifacts = Artifacts(open_store(str(folder / "store")), folder / "scratch", database, clock=clock)
    key = keys.read_or_make(folder / "coordinator.key")
    here = Coordinator(
        database,
        artifacts,
        plan,
        Books(Signer(key, RUN)),
        Judge(),
        run=RUN,
        clock=clock,
        terms=terms or Terms(),
        limits=Limits(**limits),
    )
    with database.writing() as session:
        add_files(session, {})
    advance(here)
    return here


def fill(database: Database, known: int) -> None:
    """So many machines that were here before, each with a unit that it did."""
    now = time.time()
    names = [hashlib.sha256(f"known {index}".encode()).hexdigest() for index in range(known)]
    unit = Unit(run=RUN, name="done", stage="done", role="whole").model_dump(mode="json")
    result = Result(unit="0" * 64, numerics=Numerics()).model_dump(mode="json")
    stamp = {"created": now - 1e5, "heard": now - 9e4}
    rows: list[tuple[type[Any], list[dict[str, Any]]]] = [
        (
            Account,
            [
                {"id": name, "public": name, "nickname": "", "created": now, "number": index + 1}
                for index, name in enumerate(names)
            ],
        ),
        (
            Device,
            [
                {"id": name, "account": name, "public": name, "expires": now + 1e7, "created": now}
                | {"seen": now - index % 3000, "since": now - 1e4, "capabilities": {}, "speed": 1e12}
                for index, name in enumerate(names)
            ],
        ),
        (
            TaskRow,
            [
                {"key": f"done {name}", "copy": 0, "unit": unit, "digest": name, "name": "done"}
                | {"stage": "done", "role": "whole", "state": "final", "fence": 1, "holder": name}
                | {"candidate": name, "failed": [], "micro": None, "deadline": now, "about": "", **stamp}
                | {"id": index + 1_000_000, "memory": 0, "disk": 0, "gpu": False}
                for index, name in enumerate(names)
            ],
        ),
        (
            LeaseRow,
            [
                {"id": name, "task": index + 1_000_000, "account": name, "device": name, "fence": 1}
                | {"unit": unit, "digest": name, "state": "submitted", "deadline": now, "expected": 1.0}
                | {"step": 0, "loss": None, "head": "", **stamp}
                for index, name in enumerate(names)
            ],
        ),
        (
            SubmissionRow,
            [
                {"id": name, "number": index + 1, "lease": name, "task": index + 1_000_000, "account": name}
                | {"device": name, "result": result, "digest": name, "content": name, "state": "accepted"}
                | {"reason": "", "price": 1, "late": False, "canonical": True, "created": now, "facts": {}}
                | {"decided": now, "statement": None}
                for index, name in enumerate(names)
            ],
        ),
    ]
    with database.writing() as session:
        for table, values in rows:
            if values:
                session.execute(insert(table), values)


@dataclass
class Volunteer:
    """One device and what it holds; every method is what the real worker says, by the real client."""

    client: Client
    size: int
    offer: LeaseOffer | None = None
    every: float = 0.0
    """Seconds between two heartbeats, as the coordinator said last."""

    def join(self) -> None:
        """With an account of its own."""
        account = Ed25519PrivateKey.generate()
        device = keys.public_hex(self.client.key)
        self.client.join(keys.delegate(account, device, self.client.now() + keys.YEAR))

    def lease(self, capabilities: Capabilities) -> LeaseOffer | Refusal:
        """Ask for work."""
        answer = self.client.lease(capabilities, secrets.token_hex(12))
        if isinstance(answer, LeaseOffer):
            self.offer, self.every = answer, answer.heartbeat_s
        return answer

    def beat(self, step: int) -> bool:
        """A heartbeat; whether to go on."""
        assert self.offer is not None
        unit = self.offer.unit
        link = max(unit.first, step // unit.every * unit.every)
        head = described(unit.stage, link, self.size)[0].sha256
        message = Heartbeat(fence=self.offer.fence, step=step, head=head)
        answer = self.client.heartbeat(self.offer.lease, message)
        self.every = answer.heartbeat_s
        return answer.verdict == "keep"

    def ready_beats(self, count: int) -> list[bytes]:
        """Heartbeats signed beforehand, byte for byte, so that sending one costs next to nothing."""
        assert self.offer is not None
        message = Heartbeat(fence=self.offer.fence, step=self.offer.unit.first)
        body, path = message.model_dump_json().encode(), f"/v1/leases/{self.offer.lease}/heartbeat"
        url = self.client.addresses[0]
        own = {"Host": url.removeprefix("http://"), "Content-Type": "application/json"}
        requests = []
        for _ in range(count):
            request = signing.Request("POST", f"{url}{path}")
            signed = signing.sign(request, body, self.client.key, self.client.device, self.client.now())
            headers = {**own, "Content-Length": str(len(body)), **signed}
            lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
            requests.append("\r\n".join([*lines, "", ""]).encode() + body)
        return requests

    def hand_on(self, step: int, folder: Path) -> None:
        """A state on the way, from which others can go on."""
        assert self.offer is not None
        file = self._upload(step, folder)
        micro = Micro(step=step, files=(file,), chain=chain(self.offer.unit, step, self.size))
        self.client.progress(self.offer.lease, Progress(fence=self.offer.fence, micro=micro))

    def submit(self, folder: Path) -> Receipt:
        """The last state, and the result."""
        assert self.offer is not None
        unit = self.offer.unit
        file = self._upload(unit.last, folder)
        result = Result(
            unit=unit.digest,
            outputs=(file,),
            removed=tuple(one.path for one in unit.inputs),
            chain=chain(unit, unit.last, self.size),
            numerics=Numerics(),
            steps=unit.last - unit.first,
        )
        receipt = self.client.submit(self.offer.lease, Submission(fence=self.offer.fence, result=result))
        self.offer = None
        return receipt

    def _upload(self, step: int, folder: Path) -> File:
        assert self.offer is not None
        file, data = described(self.offer.unit.stage, step, self.size)
        path = folder / file.sha256
        path.write_bytes(data)
        self.client.upload(path, file)
        path.unlink()
        return file


class Watched:
    """An application whose answers are timed where they are made: from its header to the last byte."""

    def __init__(self, app: ASGIApp, path: Path) -> None:
        self._app, self._path = app, path
        self._times: list[tuple[float, float]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        since = time.perf_counter()
        await self._app(scope, receive, send)
        if scope["type"] == "http":
            self._times.append((since, time.perf_counter() - since))

    def write(self) -> None:
        """When each began, by a clock that all processes share, and how many seconds it took."""
        self._path.write_text(json.dumps(self._times))


def main(arguments: Sequence[str]) -> None:
    """Serve until the end."""
    folder, url, trainings = Path(arguments[0]), arguments[1], int(arguments[2])
    terms = Terms(beats=float(arguments[3])) if len(arguments) > 3 else Terms()
    here = coordinator(folder, url, Chains(trainings, 10**6, 100, 10), terms=terms)
    keeper = Keeper(here)
    keeper.start()

    def ready(address: str) -> None:
        sys.stdout.write(json.dumps({"address": address}) + "\n")
        sys.stdout.flush()

    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # which uvicorn sends again when it has ended: times come after
    app = Watched(create_app(here, None, *ROUTERS), folder / TIMES)
    Server(app, "127.0.0.1", 0, ready).run()
    keeper.stop()
    app.write()


if __name__ == "__main__":
    main(sys.argv[1:])

"""A pretended run and machines that work on it: real messages, signatures and transactions, no training."""

import hashlib
import itertools
import json
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI
from starlette.testclient import TestClient

from atoll.net import keys, leasing, protocol, signing
from atoll.net.api import create_app
from atoll.net.artifacts import Artifacts
from atoll.net.coordinator import Coordinator, Limits
from atoll.net.filing import add_files, table_of
from atoll.net.judging import Judge, advance
from atoll.net.protocol import File, Micro, Numerics, Result, Unit
from atoll.storage.store import open_store
from tests.clocks import ManualClock

RUN = "e" * 64


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def state(stage: str, step: int) -> bytes:
    """The state of a training at a step: a function of nothing else, as real ones are."""
    return f"{stage} at {step}".encode()


def place(stage: str) -> str:
    return stage.replace(" ", "/")


@dataclass
class PretendedPlan:
    """So many trainings in segments, then shares that two must agree on, then one that reads all."""

    trainings: int = 2
    steps: int = 40
    segment: int = 20
    every: int = 10
    shares: int = 0
    price: int = 1000

    def names(self) -> list[str]:
        return [f"expert {index}" for index in range(self.trainings)]

    def _at(self, stage, table) -> int:
        prefix = f"{place(stage)}/step-"
        return max((int(path.removeprefix(prefix)) for path in table if path.startswith(prefix)), default=0)

    def ready(self, table):
        units = []
        for stage in self.names():
            first = self._at(stage, table)
            if first < self.steps:
                inputs = [table[f"{place(stage)}/step-{first}"]] if first else []
                units.append(self._segment(stage, first, min(self.steps, first + self.segment), inputs))
        for share in range(self.shares):
            if f"data/{share}" not in table:
                name = f"data / {share}"
                units.append(
                    Unit(
                        run=RUN,
                        name=name,
                        stage="data",
                        role="encode",
                        share=share,
                        quorum=2,
                        price=100,
                        work=1,
                    )
                )
        if not units and "end" not in table:
            units.append(
                Unit(run=RUN, name="end", stage="end", role="whole", price=5, inputs=tuple(table.values()))
            )
        return units

    def _segment(self, stage, first, last, inputs):
        return Unit(
            run=RUN,
            name=f"{stage} @ {first}..{last}",
            stage=stage,
            role="train",
            first=first,
            last=last,
            every=self.every,
            inputs=tuple(inputs),
            price=self.price * (last - first) // self.segment,
            work=1e12 * (last - first),
        )

    def finished(self, table):
        return "end" in table

    def state(self, unit):
        return 0

    def shortened(self, unit, steps):
        taken = max(unit.every, steps // unit.every * unit.every)
        if unit.role != "train" or unit.first + taken >= unit.last:
            return unit
        return self._segment(unit.stage, unit.first, unit.first + taken, unit.inputs)

    def allows(self, unit, path):
        return path.startswith(f"{place(unit.stage)}/") or path == unit.stage == "end"


def result_of(
    unit: Unit, *, false: bool = False, numerics: Numerics | None = None
) -> tuple[Result, dict[str, bytes]]:
    """What an honest machine makes of a unit, with the bytes of its files."""
    spoilt = b" (false)" if false else b""
    if unit.role == "train":
        files = {f"{place(unit.stage)}/step-{unit.last}": state(unit.stage, unit.last) + spoilt}
        points = [*range(unit.first, unit.last, unit.every), unit.last]
        chain = tuple(sha(state(unit.stage, step)) for step in points)
    elif unit.role == "encode":
        files, chain = {f"data/{unit.share}": f"share {unit.share}".encode() + spoilt}, ()
    else:
        files, chain = {"end": b"end" + spoilt}, ()
    outputs = tuple(File(path=path, sha256=sha(data), size=len(data)) for path, data in files.items())
    removed = tuple(file.path for file in unit.inputs) if unit.role == "train" else ()
    steps = unit.last - unit.first
    result = Result(
        unit=unit.digest,
        outputs=outputs,
        removed=removed,
        chain=chain,
        numerics=numerics or Numerics(),
        steps=steps,
    )
    return result, files


@dataclass
class Ledger:
    """A book that a test can read: what was noted and credited, undone with its transaction."""

    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    credits: dict[str, tuple[str, int]] = field(default_factory=dict)
    signer: Any = None

    def note(self, session, kind, facts, at):
        json.dumps(facts)
        self.notes.append((kind, facts))
        return len(self.notes) - 1

    def credit(self, session, event, account, amount, lineage, submission, at):
        assert event not in self.credits or self.credits[event] == (account, amount), "credited twice"
        self.credits[event] = (account, amount)

    def forfeit(self, session, event, account, lineage, submission, at):
        self.credits[event] = (account, 0)

    def escrow(self, session, account, lineage):
        return 0

    def due(self, session, account, lineage, keep, before):
        return 0

    def vest(self, session, account, lineage, keep, before, at):
        return 0

    def total(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for account, amount in self.credits.values():
            totals[account] += amount
        return totals


def coordinator(database, folder, plan=None, clock=None, **settings) -> Any:
    clock = clock or ManualClock()
    artifacts = Artifacts(open_store(str(folder / "store")), folder / "scratch", database, clock=clock)
    here = Coordinator(
        database,
        artifacts,
        plan or PretendedPlan(),
        settings.pop("book", None) or Ledger(),
        settings.pop("judge", None) or Judge(),
        run=RUN,
        clock=clock,
        limits=settings.pop("limits", Limits()),
        terms=settings.pop("terms", leasing.Terms()),
    )
    with database.writing() as session:
        add_files(session, {})
    advance(here)
    return here


def app_of(here: Coordinator) -> FastAPI:
    """The application of a coordinator: one for all machines, as it is served."""
    app: FastAPI = vars(here).setdefault("app", None) or create_app(here)
    vars(here)["app"] = app
    return app


class Machine:
    """A worker without work: everything that one says, to an application in this process or to a server."""

    def __init__(self, client: httpx.Client, clock, account: Ed25519PrivateKey | None = None) -> None:
        self.client, self.clock = client, clock
        self.account = account or Ed25519PrivateKey.generate()
        self.device = Ed25519PrivateKey.generate()
        self.id = keys.identity(keys.public_hex(self.device))
        self.name = keys.identity(keys.public_hex(self.account))
        self.attempts = itertools.count()

    @classmethod
    def of(cls, here: Coordinator, **more) -> "Machine":
        client = TestClient(app_of(here), base_url="http://host.example", raise_server_exceptions=False)
        machine = cls(client, here.clock, **more)
        assert machine.join().status_code == 200
        return machine

    def send(self, method, path, body=b"", now=None, **headers) -> httpx.Response:
        url = f"{str(self.client.base_url).rstrip('/')}{path}"
        moment = self.clock.date() if now is None else now
        signed = signing.sign(signing.Request(method, url), body, self.device, self.id, moment)
        return self.client.request(method, path, content=body, headers={**signed, **headers})

    def post(self, path, message) -> httpx.Response:
        return self.send(
            "POST", path, message.model_dump_json().encode(), **{"Content-Type": "application/json"}
        )

    def join(self):
        expires = self.clock.date() + keys.YEAR
        delegation = keys.delegate(self.account, keys.public_hex(self.device), expires)
        return self.post("/v1/accounts", protocol.Join(delegation=delegation))

    def lease(self, attempt=None, **capabilities):
        request = protocol.LeaseRequest(
            capabilities=protocol.Capabilities(**capabilities), attempt=attempt or secrets.token_hex(8)
        )
        answer = self.post("/v1/leases", request)
        assert answer.status_code == 200, answer.text
        kind = protocol.LeaseOffer if answer.json()["kind"] == "lease" else protocol.Refusal
        return kind.model_validate_json(answer.content)

    def heartbeat(self, offer, step=0, head=""):
        message = protocol.Heartbeat(fence=offer.fence, step=step, head=head)
        answer = self.post(f"/v1/leases/{offer.lease}/heartbeat", message)
        assert answer.status_code == 200, answer.text
        return protocol.HeartbeatAnswer.model_validate_json(answer.content)

    def upload(self, data: bytes, size=10_000):
        for start in range(0, max(1, len(data)), size):
            piece = data[start : start + size]
            span = f"bytes {start}-{start + len(piece) - 1}/{len(data)}" if data else "bytes */0"
            answer = self.send("PUT", f"/v1/files/{sha(data)}", piece, **{"Content-Range": span})
            assert answer.status_code in (200, 202), answer.text
        return answer

    def progress(self, offer, step):
        unit = offer.unit
        data = state(unit.stage, step)
        self.upload(data)
        file = File(path=f"{place(unit.stage)}/step-{step}", sha256=sha(data), size=len(data))
        points = range(unit.first, step + 1, unit.every)
        chain = tuple(sha(state(unit.stage, one)) for one in points)
        message = protocol.Progress(fence=offer.fence, micro=Micro(step=step, files=(file,), chain=chain))
        return self.post(f"/v1/leases/{offer.lease}/progress", message)

    def release(self, offer, failed=False):
        return self.post(
            f"/v1/leases/{offer.lease}/release",
            protocol.Release(fence=offer.fence, failed=failed, reason="why"),
        )

    def submit(self, offer, **choices):
        result, files = result_of(offer.unit, **choices)
        for data in files.values():
            self.upload(data)
        return self.post(
            f"/v1/leases/{offer.lease}/submit", protocol.Submission(fence=offer.fence, result=result)
        )

    def work(self, **capabilities):
        """One unit from lease to receipt; the refusal where there is none."""
        offer = self.lease(**capabilities)
        if isinstance(offer, protocol.Refusal):
            return offer
        answer = self.submit(offer)
        assert answer.status_code == 200, answer.text
        return protocol.Receipt.model_validate_json(answer.content)


def files_of(here: Coordinator) -> dict[str, bytes]:
    """The run as it is: what must be the same however it came about."""
    with here.database.reading() as session:
        table = table_of(session)
    return {path: here.artifacts.read(file.sha256) for path, file in table.items()}


def expected(plan: PretendedPlan) -> dict[str, bytes]:
    """The run as one machine alone would make it."""
    files = {f"{place(stage)}/step-{plan.steps}": state(stage, plan.steps) for stage in plan.names()}
    return (
        files | {f"data/{share}": f"share {share}".encode() for share in range(plan.shares)} | {"end": b"end"}
    )

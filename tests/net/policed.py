"""A pretended run whose trainings are audited: states that follow from each other, machines that lie."""

import hashlib
import json
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from atoll.net import keeping, ledger, log, notes, protocol, statements
from atoll.net.books import Books
from atoll.net.comparing import Tools
from atoll.net.database import Database
from atoll.net.judging import Judge
from atoll.net.policing import Police
from atoll.net.protocol import File, Manifest, Numerics, Result, Shown, Unit
from atoll.net.statements import Signer
from atoll.net.tables import LeaseRow, SubmissionRow, TaskRow
from atoll.net.verification import asking
from atoll.net.verification.bands import Bands
from atoll.net.verification.beacon import ChainBeacon
from atoll.net.verification.comparison import Comparison, Difference, Report
from atoll.net.verification.policy import AuditPolicy
from tests.clocks import ManualClock
from tests.net.crowds import Machine, PretendedPlan, coordinator, sha

KEY, LOG = (Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
SECRET, ROUNDS = bytes(32), 20_000
ORIGIN = "run.example/log"


def state(value: bytes) -> bytes:
    """A file of safetensors with eight bytes in it."""
    head = json.dumps({"model/w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(head)) + head + value


def value_of(data: bytes) -> bytes:
    return data[-8:]


def begin(stage: str) -> bytes:
    return hashlib.sha256(stage.encode()).digest()[:8]


def step_on(value: bytes, stage: str, step: int) -> bytes:
    """An interval of training: a function of the state, the stage and the step."""
    return hashlib.sha256(value + f"{stage} {step}".encode()).digest()[:8]


def walk(value: bytes, unit: Unit, false: frozenset[int] = frozenset()) -> list[bytes]:
    """States from the first to the last of a unit; intervals that begin at a step of `false` are made up."""
    values = [value]
    for step in range(unit.first, unit.last, unit.every):
        honest = step_on(values[-1], unit.stage, step)
        values.append(bytes(8 * [step % 250 + 1]) if step in false else honest)
    return values


def place(stage: str, step: int) -> str:
    return f"{stage.replace(' ', '/')}/state/{asking.state_name(step)}"


def ways(values: list[bytes]) -> tuple[str, ...]:
    """What only who went from a state to the next knows."""
    return tuple(sha(b"the way" + one + other) for one, other in pairwise(values))


class Plan(PretendedPlan):
    """With states where trainings have them."""

    run = ""

    def _at(self, stage, table):
        prefix = place(stage, 0).removesuffix(asking.state_name(0))
        steps = [path.removeprefix(prefix) for path in table if path.startswith(prefix)]
        return max((int(step[5:13]) for step in steps), default=0)

    def ready(self, table):
        units = []
        for stage in self.names():
            first = self._at(stage, table)
            if first < self.steps:
                inputs = [table[place(stage, first)]] if first else []
                units.append(self._segment(stage, first, min(self.steps, first + self.segment), inputs))
        if not units and "end" not in table:
            inputs = tuple(table[path] for path in sorted(table))
            units.append(Unit(run="0" * 64, name="end", stage="end", role="whole", price=5, inputs=inputs))
        return [unit.model_copy(update={"run": self.run}) for unit in units]

    def state(self, unit):
        return 0

    def shortened(self, unit, steps):
        return unit

    def allows(self, unit, path):
        if unit.role == "audit":
            return path == asking.REPORT
        return path.startswith(f"{unit.stage.replace(' ', '/')}/") or path == unit.stage == "end"


@dataclass
class World:
    """A coordinator that audits, with log and ledger."""

    folder: Any
    database: Database
    policy: AuditPolicy
    plan: Plan = field(default_factory=lambda: Plan(trainings=1))
    clock: ManualClock = field(default_factory=ManualClock)
    tools: Tools = field(default_factory=lambda: Tools(lambda module, arguments: False))

    def __post_init__(self):
        settings = ChainBeacon.publish(SECRET, self.clock.date(), 1.0, ROUNDS)
        tree = {"audit": self.policy.model_dump(mode="json"), "beacon": settings.model_dump(mode="json")}
        keys = {"coordinator": notes.public_hex(KEY), "log": notes.public_hex(LOG)}
        self.manifest = Manifest(name="tiny", resolved={"name": "tiny"}, policy=tree, **keys)
        self.plan.run = self.manifest.digest
        signer = Signer(KEY, self.manifest.digest)
        with self.database.writing() as session:
            facts = {"manifest": self.manifest.model_dump(mode="json")}
            log.append(session, "manifest", facts, signer, self.clock.date())
        police = Police(self.policy, Bands(), ChainBeacon(SECRET, settings, self.clock.date))
        self.here = coordinator(
            self.database, self.folder, self.plan, self.clock,
            book=Books(signer), judge=Judge(police, self.tools),
        )  # fmt: skip
        self.here.run = self.manifest.digest
        self.publisher = log.Publisher(self.database, self.here.artifacts.store, LOG, ORIGIN)

    def tick(self, seconds: float = 3.0):
        """Time goes by, and the coordinator looks after what waits."""
        self.clock.time += seconds
        keeping.reconsider(self.here)

    def unit_of(self, submission: str) -> Unit:
        """What a result is of."""
        with self.database.reading() as session:
            row = session.get_one(SubmissionRow, submission)
            return Unit.model_validate(session.get_one(LeaseRow, row.lease).unit)

    def rows(self, table, **where):
        """Rows of a table."""
        with self.database.reading() as session:
            return list(session.scalars(select(table).filter_by(**where)))

    def finish(self, workers, turns=200):
        """Everybody works until the run is done."""
        for _ in range(turns):
            if self.here.done:
                return
            for worker in workers:
                worker.turn()
            self.tick()
        waiting = [
            (row.name, row.state) for row in self.rows(TaskRow) if row.state not in ("final", "accepted")
        ]
        raise AssertionError(f"the run does not end: {waiting}")

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Facts of all statements of a kind."""
        rows = self.rows(log.Entry, kind=kind)
        return [
            dict(statements.opened(row.envelope).facts) for row in sorted(rows, key=lambda row: row.index)
        ]

    def escrow(self, worker, lineage=None) -> int:
        with self.database.reading() as session:
            return ledger.balance(session, worker.name, "escrow", lineage)

    def machine(self, **ways) -> "Worker":
        made: Any = Worker.of(self.here)
        made.world, made.kept = self, {}
        for name, way in ways.items():
            setattr(made, name, way)
        return made


class Worker(Machine):
    """A machine that trains, audits and shows states; it may lie in intervals, or as an auditor."""

    world: World
    kept: dict[str, Any]
    """Units and states of what it handed in."""
    values: list[bytes]
    false: frozenset[int] = frozenset()
    """Steps at which intervals begin that it makes up."""
    says = "truth"
    """As an auditor: the truth, or always the same."""
    replays = True
    """As an auditor, whether it takes the steps at all."""
    shows = True
    numerics = Numerics()

    def read(self, sha256: str) -> bytes:
        return self.world.here.artifacts.read(sha256)

    def before(self, unit: Unit) -> bytes:
        inputs = {file.path: file for file in unit.inputs}
        if unit.first == 0:
            return begin(unit.stage)
        return value_of(self.read(inputs[place(unit.stage, unit.first)].sha256))

    def submit(self, offer, **choices):
        unit = offer.unit
        made = {"train": self.train, "audit": self.look}.get(unit.role, self.end)(unit)
        traces = ways(self.values) if unit.every and (unit.role == "train" or self.replays) else ()
        answer = self.post(
            f"/v1/leases/{offer.lease}/submit",
            protocol.Submission(fence=offer.fence, result=made, traces=traces),
        )
        if unit.role == "train":
            self.kept[answer.json()["submission"]] = unit, self.values
        return answer

    def _result(self, unit, files, chain=(), removed=()):
        for data in files.values():
            self.upload(data)
        outputs = tuple(File(path=path, sha256=sha(data), size=len(data)) for path, data in files.items())
        return Result(
            unit=unit.digest, outputs=outputs, chain=chain, removed=removed, numerics=self.numerics,
            steps=unit.last - unit.first,
        )  # fmt: skip

    def train(self, unit):
        self.values = walk(self.before(unit), unit, self.false)
        chain = tuple(sha(state(value)) for value in self.values)
        removed = tuple(file.path for file in unit.inputs)
        return self._result(unit, {place(unit.stage, unit.last): state(self.values[-1])}, chain, removed)

    def end(self, unit):
        return self._result(unit, {"end": "".join(file.sha256 for file in unit.inputs).encode()})

    def look(self, unit):
        committed = next(file.sha256 for file in unit.inputs if file.path == asking.COMMITTED)
        self.values = values = walk(self.before(unit), unit)
        replayed = sha(state(values[-1]))
        same = {"truth": replayed == committed, "agrees": True, "differs": False, "odd": False}[self.says]
        apart = 0.0 if same else 0.003 if self.says == "odd" else 1.0
        parts = {"model": Difference(relative=apart, cosine=1 - apart)}
        report = Report(
            replayed=replayed, committed=committed,
            comparison=Comparison(equal=same, counts=True, kinds=parts),
        )  # fmt: skip
        chain = tuple(sha(state(value)) for value in values)
        return self._result(unit, {asking.REPORT: report.model_dump_json().encode()}, chain)

    def show(self):
        """The states that are asked for of what it handed in; the last answer."""
        answer = None
        for number, (unit, values) in list(self.kept.items()):
            receipt = self.client.get(f"/v1/submissions/{number}").json()
            if receipt["final"] and receipt["state"] in ("accepted", "rejected", "duplicate"):
                del self.kept[number]  # nobody will ask for its states any more
            if receipt["wanted"] and self.shows:
                steps = receipt["wanted"]
                answer = self.show_states(
                    number, unit, {step: values[(step - unit.first) // unit.every] for step in steps}
                )
        return answer

    def show_states(self, number, unit, values):
        files = []
        for step, value in values.items():
            self.upload(state(value))
            files.append(File(path=place(unit.stage, step), sha256=sha(state(value)), size=len(state(value))))
        return self.post(f"/v1/submissions/{number}/states", Shown(files=tuple(files)))

    def turn(self):
        """States that it is asked for, then one unit if there is one."""
        self.show()
        return self.work()


CALM = AuditPolicy(first=3, floor=0.05, everywhere=0.0, second=0.0, canaries=1e-9, patience=60.0)
"""No chance but the beacon's: three units of each account are audited, then few."""


def small(folder: Any, policy: AuditPolicy = CALM) -> World:
    """One training of one segment."""
    database = Database(str(folder / "atoll.db"), patience=5)
    database.create()
    return World(folder, database, policy, Plan(trainings=1, steps=20, segment=20))

"""Liars in a real coordinator: messages, transactions, log and ledger are real, training and time are not."""

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient
from tests.net.policed import Plan, Worker, World, place, state, walk
from tests.net.policed import begin as first_state

from atoll.net import ledger, protocol, settling
from atoll.net.api import create_app
from atoll.net.comparing import Tools
from atoll.net.database import Database
from atoll.net.filing import table_of
from atoll.net.tables import SubmissionRow
from atoll.net.verification.policy import AuditPolicy

EVERY, INTERVALS = 10, 8
"""Steps of an interval, intervals of a segment."""
SPAN = EVERY * INTERVALS
JOINING = 0.01
"""What it costs to join, in units of a segment."""
TURNS, MINUTE = 400, 60.0
Lie = Callable[[int, random.Random], frozenset[int]]
"""The intervals of a segment that are made up, by the segment's number in the career of the liar."""


def all_of_it(number: int, source: random.Random) -> frozenset[int]:
    """Whatever every interval shows: unchanged, noise, fewer steps, another seed, cluster or batch."""
    return frozenset(range(INTERVALS))


def one_interval(number: int, source: random.Random) -> frozenset[int]:
    """One interval of eight in every segment, as whoever wants to harm a model would."""
    return frozenset({source.randrange(INTERVALS)})


def half_of_it(number: int, source: random.Random) -> frozenset[int]:
    """Every other interval, as whoever wants to be paid for half of the work."""
    return frozenset(range(source.randrange(2), INTERVALS, 2))


def once_trusted(number: int, source: random.Random) -> frozenset[int]:
    """Nothing in its first segment, then all."""
    return frozenset(range(INTERVALS)) if number >= 1 else frozenset()


def nothing(number: int, source: random.Random) -> frozenset[int]:
    """Honest."""
    return frozenset()


@dataclass(frozen=True)
class Scheme:
    """Who is in a run besides three honest accounts."""

    lie: Lie = nothing
    liars: int = 1
    """Accounts of the same person."""
    friends: int = 0
    """Accounts of the same person that find everything good when they audit, and never look."""
    forged: bool = False
    """Whether the chain of hashes is made up."""
    segments: int = 3
    """Segments of the training."""
    first: int | None = None
    """Units of everybody that are audited before trust begins, if not as many as the policy says."""


SCHEMES = {
    "false in every interval": Scheme(all_of_it),
    "half of the intervals": Scheme(half_of_it),
    "one interval of eight": Scheme(one_interval),
    "honest until trusted": Scheme(once_trusted, segments=8, first=1),
    "forged chain": Scheme(forged=True),
    "three accounts of one person": Scheme(all_of_it, liars=3),
    "a friend among the auditors": Scheme(all_of_it, friends=1),
    "auditors who never look": Scheme(liars=0, friends=2),
    "honest": Scheme(),
}


class Stranger(Worker):
    """A machine of the kit that lies by a scheme."""

    scheme: Scheme
    source: random.Random
    segments = lies = 0
    spent = 0.0
    """Segments' worth of work that it did."""

    def train(self, unit: Any) -> Any:
        lies = self.scheme.lie(self.segments, self.source)
        self.false = frozenset(unit.first + EVERY * index for index in lies)
        self.segments += 1
        self.lies += bool(lies) or self.scheme.forged
        self.spent += 0.0 if self.scheme.forged else 1 - len(lies) / INTERVALS
        result = super().train(unit)
        return result.model_copy(update={"chain": result.chain[:-1]}) if self.scheme.forged else result

    def look(self, unit: Any) -> Any:
        self.spent += (unit.last - unit.first) / SPAN if self.says == "truth" else 0.0
        return super().look(unit)


def career(scheme: Scheme, policy: AuditPolicy, seed: int) -> dict[str, Any]:
    """One run from beginning to end, and what became of the liar."""
    with tempfile.TemporaryDirectory(prefix="atoll-liars-") as name:
        folder, source = Path(name), random.Random(seed)
        database = Database(str(folder / "atoll.db"), patience=30)
        database.create()
        plan = Plan(trainings=1, steps=scheme.segments * SPAN, segment=SPAN, every=EVERY)
        if scheme.first is not None:
            policy = policy.model_copy(update={"first": scheme.first})
        world = World(folder, database, policy, plan, tools=Tools(_spoiling))
        with TestClient(create_app(world.here), base_url="http://host.example") as client:

            def stranger(about: Scheme, says: str = "truth") -> Stranger:
                one = Stranger(client, world.here.clock)
                one.world, one.kept, one.scheme, one.source, one.says = world, {}, about, source, says
                one.replays = says == "truth"
                one.join()
                return one

            liars = [stranger(scheme) for _ in range(scheme.liars)]
            liars += [stranger(Scheme(), "agrees") for _ in range(scheme.friends)]
            turns = _run(world, [*liars, *(stranger(Scheme()) for _ in range(3))], source)
        settling.settle(world.here)
        report = _outcome(world, liars, turns)
        database.close()
        return report


def _spoiling(module: str, arguments: Sequence[str]) -> bool:
    """The process that makes a canary, as far as a pretended state can be spoilt."""
    Path(arguments[2]).write_bytes(state(b"spoilt!!"))
    return True


def _run(world: World, people: list[Stranger], source: random.Random) -> int:
    """Everybody works, in an order of chance, until the run is done; how many rounds that took."""
    for turn in range(TURNS):
        if world.here.done:
            return turn
        source.shuffle(people)
        for one in sorted(people, key=lambda one: one.scheme.lie is nothing):  # liars are quick
            one.show()
            offer = one.lease()
            if isinstance(offer, protocol.LeaseOffer):
                one.submit(offer)
        world.tick(MINUTE)
    raise RuntimeError("a run of liars does not end")


def _outcome(world: World, liars: list[Stranger], turns: int) -> dict[str, Any]:
    names = {one.name for one in liars}
    with world.database.reading() as session:
        paid = sum(ledger.balance(session, name, bucket) for name in names for bucket in ("vested", "escrow"))
    rows = [row for row in world.rows(SubmissionRow) if row.account in names]
    refused = [row for row in rows if row.state == "rejected"]
    banned = {one["account"] for one in world.told("ban")}  # an account may be told so again
    spent = sum(one.spent for one in liars) + JOINING * len(liars)
    return {
        "poisoned": not _is_honest(world),
        "lies": sum(one.lies for one in liars),
        "handed_in": len(rows),
        "refused": len(refused),
        "banned": len(banned & names),
        "wronged": len(banned - names),
        "hard": sum(one["hard"] for one in world.told("verdict")),
        "profit": paid / world.plan.price - spent,
        "turns": turns,
    }


def _is_honest(world: World) -> bool:
    """Whether the model is the one that honest machines make."""
    for stage in world.plan.names():
        value = first_state(stage)
        for first in range(0, world.plan.steps, world.plan.segment):
            value = walk(value, world.plan._segment(stage, first, first + world.plan.segment, []))[-1]
        if _file(world, place(stage, world.plan.steps)) != state(value):
            return False
    return True


def _file(world: World, path: str) -> bytes:
    with world.database.reading() as session:
        return world.here.artifacts.read(table_of(session)[path].sha256)

"""Everything that can go wrong on the coordinator's side, by random schedules with a clock of the tests' own.

Requests are lost before the coordinator heard them, or their answers after it acted; uploads are cut short,
false, or meet a full disk; machines fall silent and come back, or share one key; the coordinator is killed
and started again on the same database, or is away for hours; the database is locked, the store away.
After every schedule: the run is what one machine alone would have made, every unit was accepted once, and the
books add up to the price of the work.
"""

import os
import random
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select

from atoll.errors import StorageError
from atoll.net import artifacts, keeping, keys, ledger, protocol
from atoll.net.artifacts import ArtifactError
from atoll.net.books import Books
from atoll.net.callers import Caller
from atoll.net.database import Away, Database
from atoll.net.leasing import LeaseError
from atoll.net.protocol import File, Heartbeat, Micro, Progress, Refusal, Release, Submission
from atoll.net.signing import Signed
from atoll.net.statements import Signer
from atoll.net.tables import SubmissionRow, TaskRow
from tests.clocks import ManualClock
from tests.net.crowds import (
    RUN,
    Machine,
    PretendedPlan,
    coordinator,
    expected,
    files_of,
    place,
    result_of,
    sha,
    state,
)

SCHEDULES = int(os.environ.get("ATOLL_SCHEDULES", "10"))
GROUP = min(20, SCHEDULES)
MEMORY = Path("/dev/shm")
"""Where writing to the disk takes no time: nobody pulls a plug here."""
PLAN = PretendedPlan(trainings=1, steps=40, segment=20, shares=1)


def links(unit, step):
    return tuple(sha(state(unit.stage, one)) for one in range(unit.first, step + 1, unit.every))


class Lost(Exception):  # noqa: N818 - what happened
    """A machine does not hear an answer."""


class Volunteer:
    """One process of a worker: it keeps what it holds, and forgets all of it when it is killed."""

    def __init__(self, world, account, device):
        self.world, self.account, self.device = world, account, device
        self.offer, self.attempt, self.step = None, None, 0

    def caller(self):
        return Caller(self.account, self.device, Signed(self.device, secrets.token_hex(12), self.now() + 60))

    def now(self):
        return self.world.clock.date()

    def ask(self, act):
        """A request: it may not arrive, and its answer may not."""
        if self.world.chance(0.1):
            raise Lost
        answer = act(self.world.here)
        if self.world.chance(0.1):
            raise Lost
        return answer

    def turn(self):
        """Whatever comes next; a loss is met by doing it again another time."""
        try:
            if self.offer is None:
                self.lease()
            else:
                self.work()
        except (Lost, Away, ArtifactError, StorageError) as error:
            self.world.faults.add(type(error).__name__)
        except LeaseError as error:
            assert error.code == "missing", error  # the upload was lost: it comes again

    def lease(self):
        self.attempt = self.attempt or secrets.token_hex(8)
        request = protocol.LeaseRequest(attempt=self.attempt)
        answer = self.ask(lambda here: here.lease(self.caller(), request))
        self.attempt = None
        if not isinstance(answer, Refusal):
            self.offer, self.step = answer, answer.resume.step if answer.resume else answer.unit.first

    def work(self):
        unit, fence, name = self.offer.unit, self.offer.fence, self.offer.lease
        choice = self.world.random.random()
        if choice < 0.15:
            answer = self.ask(
                lambda here: here.heartbeat(self.caller(), name, Heartbeat(fence=fence, step=self.step))
            )
            if answer.verdict == "stop" and self.world.chance(0.5):
                self.offer = None
        elif choice < 0.25:
            self.ask(lambda here: here.release(self.caller(), name, Release(fence=fence, reason="a person")))
            self.offer = None
        elif choice < 0.5 and unit.role == "train" and self.step + unit.every < unit.last:
            self.micro(self.step + unit.every)
        else:
            result, files = result_of(unit)
            for data in files.values():
                self.upload(data)
            receipt = self.ask(
                lambda here: here.submit(self.caller(), name, Submission(fence=fence, result=result))
            )
            assert receipt.state in ("received", "checked", "accepted"), receipt
            self.offer = None

    def micro(self, step):
        data = state(self.offer.unit.stage, step)
        self.upload(data)
        file = File(path=f"{place(self.offer.unit.stage)}/step-{step}", sha256=sha(data), size=len(data))
        message = Progress(
            fence=self.offer.fence, micro=Micro(step=step, files=(file,), chain=links(self.offer.unit, step))
        )
        self.ask(lambda here: here.progress(self.caller(), self.offer.lease, message))
        self.step = step

    def upload(self, data):
        """In two pieces, the second of which may be cut short or be another's."""
        digest, half = sha(data), len(data) // 2
        sent = bytes(len(data)) if self.world.chance(0.2) else data
        start = self.world.here.artifacts.received(digest, self.account)
        for first, last in ((start, max(start, half)), (max(start, half), len(data))):
            self.ask(
                lambda here, first=first, last=last: here.artifacts.receive(
                    digest, self.account, first, len(data), sent[first:last]
                )
            )


class World:
    """A coordinator that may be killed, and volunteers."""

    def __init__(self, folder, database_url, seed):
        self.random, self.folder, self.url = random.Random(seed), folder, database_url
        self.clock, self.faults = ManualClock(), set()
        self.key = Ed25519PrivateKey.from_private_bytes(bytes(32))
        self.calm, self.here = False, None
        self.restart()
        accounts = [self.account() for _ in range(3)]
        self.volunteers = [Volunteer(self, *one) for one in (*accounts, accounts[0])]  # two with one key

    def chance(self, probability):
        return not self.calm and self.random.random() < probability

    def account(self):
        machine = Machine(httpx.Client(), self.clock)
        delegation = keys.delegate(machine.account, keys.public_hex(machine.device), self.clock.date() + 1e7)
        signed = Signed(machine.id, secrets.token_hex(12), self.clock.date() + 60)
        self.here.join(protocol.Join(delegation=delegation), signed)
        return machine.name, machine.id

    def restart(self):
        """Another process on the same database: nothing is left of what was in memory."""
        if self.here is not None:
            self.here.database.close()
        database = Database(self.url, patience=5)
        if self.here is None:
            database.create()
        self.here = coordinator(database, self.folder, PLAN, self.clock, book=Books(Signer(self.key, RUN)))

    def turn(self):
        choice = self.random.random()
        if choice < 0.04:
            self.restart()
        elif choice < 0.08:
            self.clock.time += self.random.choice([100, 1000, 5000, 100_000])
            if self.chance(0.5):  # the coordinator was away, or only everybody else
                keeping.pulse(self.here)
            keeping.sweep(self.here)
        elif choice < 0.1:
            self.random.choice(self.volunteers).offer = None  # killed
        elif choice < 0.12:
            with self.here.database.writing():  # locked
                self.here.database.patience = 0.001
                self.random.choice(self.volunteers).turn()
                self.here.database.patience = 5
        elif choice < 0.14:
            self.lose_the_store()
        else:
            self.random.choice(self.volunteers).turn()

    def lose_the_store(self):
        """For a minute, in which everybody tries to go on."""

        def away(*arguments):
            raise StorageError("the bucket is away")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.here.artifacts.store, "upload", away)
            for volunteer in self.volunteers:
                volunteer.turn()
                self.clock.time += 60 / len(self.volunteers)

    def finish(self):
        """Random turns, then calm until all is done."""
        for turn in range(400):
            self.calm = turn > 40
            self.turn() if not self.calm else self.random.choice(self.volunteers).turn()
            if self.calm and turn % 20 == 0:
                self.clock.time += 4000
                keeping.sweep(self.here)
                keeping.reconsider(self.here)
            if self.here.done:
                return
        raise AssertionError("never finished")


def check(world):
    here = world.here
    keeping.reconsider(here)
    assert files_of(here) == expected(PLAN)
    with here.database.writing() as session:
        while ledger.project(session):
            pass
        assert ledger.reconcile(session).holds
        accepted = session.execute(
            select(TaskRow.key, func.count())
            .join(SubmissionRow, SubmissionRow.task == TaskRow.id)
            .where(SubmissionRow.canonical, SubmissionRow.state == "accepted")
            .group_by(TaskRow.key)
        ).all()
        assert {number for _, number in accepted} == {1} and len(accepted) >= 4  # slow ones get less
        canonical = session.scalars(select(SubmissionRow).where(SubmissionRow.canonical)).all()
        paid = {one.id: 0 for one in canonical}
        for event, amount in session.execute(
            select(ledger.Event.submission, ledger.Posting.amount)
            .join(ledger.Posting, ledger.Posting.index == ledger.Event.index)
            .where(ledger.Posting.bucket == "escrow", ledger.Posting.amount > 0)
        ):
            if event in paid:
                paid[event] += amount
        prices = {one.id: session.get_one(TaskRow, one.task).unit["price"] for one in canonical}
        assert paid == prices, "every accepted unit is paid for once, whoever did which part of it"


@pytest.mark.parametrize("group", range(SCHEDULES // GROUP))
def test_random_schedules(tmp_path, group):
    faults: set[str] = set()
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as place:
        for number in range(GROUP):
            folder = Path(place) / str(number)
            folder.mkdir()
            world = World(folder, str(folder / "atoll.db"), group * 1000 + number)
            world.finish()
            check(world)
            faults |= world.faults
            world.here.database.close()
    assert faults == {"Lost", "Away", "ArtifactError", "StorageError"}


@pytest.mark.thorough
def test_random_schedules_on_postgresql(tmp_path, postgresql):
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, postgresql.new(), 77 + number)
        world.finish()
        check(world)
        world.here.database.close()


def test_a_full_disk_is_told_and_got_over(tmp_path, monkeypatch):
    world = World(tmp_path, str(tmp_path / "atoll.db"), 5)
    world.calm = True
    monkeypatch.setattr(artifacts, "SPARE", 1 << 60)
    for _ in range(10):
        world.random.choice(world.volunteers).turn()
    assert "ArtifactError" in world.faults and not files_of(world.here)
    monkeypatch.undo()
    world.finish()
    check(world)


@pytest.mark.each(8)
@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize(
    "path", ["accounts", "leases", "heartbeat", "progress", "release", "submit", "reconcile", "files"]
)
def test_every_endpoint_may_fail_before_or_after_the_coordinator_acted(tmp_path, path, fault):
    """A client that asks again, with another nonce, after a connection broke: as if nothing had happened."""
    database = Database(str(tmp_path / "atoll.db"), patience=5)
    database.create()
    here = coordinator(database, tmp_path, PLAN)
    machine = Machine.of(here)
    broken = []
    send = machine.client.request

    def request(method, url, **more):
        if path in url.split("/")[-1] + url.split("/")[2] and url not in broken and method != "GET":
            broken.append(url)
            if fault == "after":
                send(method, url, **more)
            raise httpx.ReadError("broken")
        return send(method, url, **more)

    machine.client.request = request
    again = Again(machine)
    again.join()
    offer = again.lease(attempt="one")
    again.heartbeat(offer, step=1)
    assert again.progress(offer, 10).status_code == 200
    held = protocol.Held(lease=offer.lease, fence=offer.fence)
    assert again.post("/v1/reconcile", protocol.Reconcile(leases=(held,))).status_code == 200
    assert again.release(offer).status_code == 200
    offer = again.lease(attempt="two")
    assert again.submit(offer).json()["state"] == "accepted"
    assert broken, "it broke at least once"
    with database.reading() as session:
        assert session.query(SubmissionRow).count() == 1
    book = here.book
    assert sum(amount for _, amount in book.credits.values()) == offer.unit.price
    database.close()


class Again:
    """Asks once more where a connection broke."""

    def __init__(self, machine):
        self.machine = machine

    def __getattr__(self, name):
        act = getattr(self.machine, name)

        def twice(*arguments, **more):
            for _ in range(9):
                try:
                    return act(*arguments, **more)
                except httpx.ReadError:
                    continue
            raise AssertionError("it never went through")

        return twice

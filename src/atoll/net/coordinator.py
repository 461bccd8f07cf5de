"""What the coordinator does for a worker, each in one transaction: join, lease, heartbeat, release, submit.

Everything may be asked again: a worker that did not hear the answer asks once more and gets the same.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from atoll.net import banning, callers, holding, leasing, results, vouching
from atoll.net.artifacts import Artifacts
from atoll.net.beating import Beats
from atoll.net.callers import Caller, once
from atoll.net.choosing import Choice, choose, is_any_free, learn, none_free
from atoll.net.crash import crash_point
from atoll.net.database import Database
from atoll.net.faults import Faults
from atoll.net.judging import Judge
from atoll.net.pacing import Pace
from atoll.net.planning import Book, Plan
from atoll.net.protocol import (
    VERSION,
    Acknowledged,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    Joined,
    LeaseOffer,
    LeaseRequest,
    Micro,
    Progress,
    Receipt,
    Reconcile,
    Reconciled,
    Refusal,
    Release,
    Shown,
    Submission,
    Unit,
)
from atoll.net.results import NotYours
from atoll.net.signing import Signed
from atoll.net.tables import BlobRow, Device, LeaseRow, SubmissionRow, TaskRow, happened
from atoll.storage.clock import CLOCK, Clock

ACTIVE = "active"
COUNTED, LONGEST = 60.0, 1800.0
"""Seconds for which a count of machines is good, and after which at the latest one may ask again."""
UNFIT, PATIENT = ("too-little-memory", "too-little-disk", "role"), 60.0
"""Reasons that lie with a machine; how many times as long as others such a one waits, up to a minute."""


@dataclass(frozen=True)
class Limits:
    """What one account may have at a time."""

    leases: int = 64
    retry: float = 30.0
    """Seconds after which one may ask again where there is no work, if few ask."""
    questions: float = 50.0
    """Times a second that all who have no work may ask together."""
    target: float = 7200.0
    """Seconds for which a lease of a training should last."""


@dataclass
class Coordinator:
    """One run's, over its database and its artifacts."""

    database: Database
    artifacts: Artifacts
    plan: Plan
    book: Book
    judge: Judge
    run: str = "0" * 64
    """The digest of the manifest."""
    terms: leasing.Terms = field(default_factory=leasing.Terms)
    limits: Limits = field(default_factory=Limits)
    clock: Clock = CLOCK
    url: str = ""
    done: bool = False
    """Whether everything is there."""
    opened: dict[str, Unit] = field(default_factory=dict)
    """Units that are tasks already, as far as this process knows, by what there is one of at a time."""
    moved: bool = False
    """Whether another address serves the run now: then nothing is written here any more."""
    faults: Faults = field(default_factory=Faults)
    pace: Pace = field(default_factory=Pace)
    beats: Beats = field(default_factory=Beats)
    _counted: float = -1.0
    _awake: int = 0
    """Machines that were heard of lately, counted now and then."""

    def __post_init__(self) -> None:
        self.devices = callers.Devices(self.database)

    def join(self, message: Join, signed: Signed) -> Joined:
        """A device introduces itself, or does so again."""
        return callers.join(self.database, self.book, self.clock.date(), message, signed)

    def device(self, key_id: str) -> callers.Known | None:
        """A device by its id, if it may still act."""
        return self.devices.find(key_id, self.clock.date())

    def remember(self, caller: Caller) -> None:
        """Take a request that changes nothing else at most once."""
        with self.database.writing(durable=False) as session:
            once(session, caller.signed)

    def lease(self, caller: Caller, request: LeaseRequest) -> LeaseOffer | Refusal:
        """Work that fits the machine, or why there is none."""
        now = self.clock.date()
        if request.protocol != VERSION:
            return self._refused("update", f"this run speaks version {VERSION}; update atoll", 3600.0)
        if request.run is not None and request.run != self.run:
            return self._refused("other-run", "another run is served here now; join again", 60.0)
        if self.done:
            return self._refused("finished", "the run is finished; thank you", 3600.0)
        name = self._lease_name(caller, request)
        idle = self._idle(name)
        crash_point("lease.before-commit")
        with self.database.writing(durable=idle is None) as session:
            once(session, caller.signed)
            device = session.get_one(Device, caller.device)
            callers.present(device, now)
            if idle is not None:
                return self._refused(idle.reason, idle.sentence, self._patience(session, now))
            device.capabilities = request.capabilities.model_dump(mode="json", exclude={"holds"})
            known = session.get(LeaseRow, name)
            if known is not None:
                return self._offer(session, known, now)
            held = session.scalar(
                select(func.count()).where(LeaseRow.account == caller.account, LeaseRow.state == ACTIVE)
            )
            if barred := self.judge.barred(session, caller.account):
                return self._refused("banned", barred, LONGEST)
            if (held or 0) >= self.limits.leases:
                return self._refused(
                    "limit", f"your account has {held} leases; finish some", self.limits.retry
                )
            choice = choose(
                session,
                device,
                request.capabilities,
                self.plan,
                self.limits.target,
                now,
                lambda row: self.judge.may(session, row, device, now),
            )
            if isinstance(choice, Refusal):
                wait = self._patience(session, now)
                if choice.reason in UNFIT:  # work of another kind comes seldom
                    wait = max(wait, min(60.0, PATIENT * self.limits.retry))
                return self._refused(choice.reason, choice.sentence, wait)
            answer = self._leased(session, choice, caller, name, now)
        crash_point("lease.after-commit")
        return answer

    def _idle(self, name: str) -> Refusal | None:
        """Why there is nothing for anybody, by a look that disturbs no writer; None where there may be."""
        with self.database.reading() as session:
            known = session.get(LeaseRow, name) is not None
            return None if known or is_any_free(session) else none_free(session)

    def _patience(self, session: Session, now: float) -> float:
        """When to come back: the later, the more there are who wait, so that all of them are no burden."""
        if not self._counted <= now < self._counted + COUNTED:
            recent = select(func.count()).where(Device.seen > now - LONGEST)
            self._counted, self._awake = now, session.scalar(recent) or 0
        return min(LONGEST, max(self.limits.retry, self._awake / self.limits.questions))

    def _lease_name(self, caller: Caller, request: LeaseRequest) -> str:
        """The same for the same request, however often it is made."""
        attempt = request.attempt or caller.signed.nonce
        return hashlib.sha256(f"{caller.device} {attempt}".encode()).hexdigest()[:32]

    def _leased(self, session: Session, choice: Choice, caller: Caller, name: str, now: float) -> LeaseOffer:
        row, unit = choice.row, choice.unit
        earlier = session.get(LeaseRow, row.holder) if row.holder else None
        if earlier is not None and earlier.state == ACTIVE:
            earlier.state = "lost"
            happened(
                session,
                now,
                "lease_lost",
                task=row.name,
                lease=earlier.id,
                device=earlier.device,
                fence=row.fence,
            )
        row.task = leasing.lease(row.task, name, now, choice.expected, self.terms)
        if unit.digest != row.digest:
            row.describe(unit)
        lease = LeaseRow(
            id=name,
            task=row.id,
            account=caller.account,
            device=caller.device,
            fence=row.fence,
            unit=row.unit,
            digest=row.digest,
            state=ACTIVE,
            created=now,
            heard=now,
            deadline=row.deadline,
            expected=choice.expected,
            step=unit.first,
        )
        session.add(lease)
        session.flush()
        definition = row.unit if len(str(row.unit)) < 40_000 else None
        facts = {"lease": name, "unit": row.name, "fence": row.fence, "account": caller.account}
        facts |= {"device": caller.device, "price": unit.price, "first": unit.first, "last": unit.last}
        facts |= {name: getattr(row, name) for name in ("digest", "key", "copy", "role", "about")}
        self.book.note(session, "lease", {**facts, "definition": definition}, now)
        return self._offer(session, lease, now)

    def _offer(self, session: Session, lease: LeaseRow, now: float) -> LeaseOffer:
        row = session.get_one(TaskRow, lease.task)
        micro = None if row.micro is None else Micro.model_validate(row.micro["micro"])
        offer = LeaseOffer(
            lease=lease.id,
            unit=Unit.model_validate(lease.unit),
            fence=lease.fence,
            heartbeat_s=self.beats.seconds(self, session),
            soft_deadline=lease.created + lease.expected,
            hard_deadline=lease.deadline,
            resume=micro,
            now=now,
            probation=self.judge.is_on_probation(session, lease.account),
        )
        signer = self.book.signer
        return offer if signer is None else vouching.signed(offer, signer)

    def _refused(self, reason: Any, sentence: str, retry: float) -> Refusal:
        return Refusal(reason=reason, sentence=sentence, retry_after_s=retry, now=self.clock.date())

    def heartbeat(self, caller: Caller, name: str, message: Heartbeat) -> HeartbeatAnswer:
        """A holder is still there; most requests are this one, so many are written at once."""
        return self.beats.hear(self, caller, name, message)

    def progress(self, caller: Caller, name: str, message: Progress) -> Acknowledged:
        """A state on the way that is here: whoever comes next goes on from it."""
        now, micro = self.clock.date(), message.micro
        crash_point("progress.before-commit")
        with self.database.writing() as session:
            once(session, caller.signed)
            lease, row = self._own(session, caller, name, message.fence)
            unit = Unit.model_validate(lease.unit)
            if not unit.first < micro.step <= unit.last or unit.role != "train":
                raise leasing.LeaseError("step", f"{unit.name} has no state at step {micro.step}")
            results.check_files(session, self.plan, unit, micro.files)
            results.check_links(unit, micro)
            after = leasing.heartbeat(row.task, lease.fence, now)
            if after is None:
                return Acknowledged(now=now, state="late")
            row.task = after
            lease.heard, lease.step = now, micro.step
            before = row.micro or {"shares": [], "micro": None}
            if before["micro"] is None or before["micro"]["step"] < micro.step:
                shares = [*(one for one in before["shares"] if one[1] != lease.id)]
                shares.append([caller.account, lease.id, micro.step])
                row.micro = {"micro": micro.model_dump(mode="json"), "shares": shares}
                facts = {"lease": lease.id, "unit": row.name, "fence": lease.fence, "step": micro.step}
                head = micro.chain[-1] if micro.chain else ""
                file = micro.files[0].model_dump(mode="json")
                self.book.note(session, "commitment", {**facts, "head": head, "file": file}, now)
        crash_point("progress.after-commit")
        return Acknowledged(now=now, state="kept")

    def release(self, caller: Caller, name: str, message: Release) -> Acknowledged:
        """A holder gives a lease back."""
        now = self.clock.date()
        crash_point("release.before-commit")
        with self.database.writing() as session:
            once(session, caller.signed)
            lease, row = self._own(session, caller, name, message.fence)
            if lease.state == ACTIVE:
                lease.state = "released"
                row.task = leasing.release(row.task, lease.fence, caller.device, message.failed, self.terms)
                kind = "unit_failed" if message.failed else "lease_released"
                happened(session, now, kind, task=row.name, device=caller.device, reason=message.reason)
                if row.state == "quarantined":
                    happened(session, now, "unit_quarantined", task=row.name, reason=message.reason)
                    self.book.note(
                        session, "quarantine", {"unit": row.name, "reason": "it failed on two machines"}, now
                    )
            state = row.state
        crash_point("release.after-commit")
        return Acknowledged(now=now, state=state)

    def submit(self, caller: Caller, name: str, message: Submission) -> Receipt:
        """A result, once or again: the receipt is the same, but for what has become of it since."""
        now, result = self.clock.date(), message.result
        long = results.aside(self.artifacts, result)
        number = hashlib.sha256(f"{name} {result.digest}".encode()).hexdigest()[:32]
        crash_point("submit.before-commit")
        with self.database.writing() as session:
            once(session, caller.signed)
            lease, row = self._own(session, caller, name, message.fence)
            known = session.get(SubmissionRow, number)
            if known is None and lease.digest != row.digest:
                raise leasing.LeaseError("void", f"what {row.name} was built on is gone; drop it")
            if known is None:
                unit = Unit.model_validate(lease.unit)
                learn(session.get_one(Device, lease.device), unit, row, lease, now)
                signed = self._signature(session, lease, message)
                results.take(session, self.plan, self.book, lease, row, message, number, now, long, signed)
        crash_point("submit.after-commit")
        if known is None or known.state == "received":
            self.judge.consider(self, number)
        return self.receipt(number)

    def _signature(self, session: Session, lease: LeaseRow, message: Submission) -> Any:
        """The device's statement about its result, for the log; None where it made none."""
        if not message.signed:
            return None
        public = session.get_one(Device, lease.device).public
        if not vouching.is_handed_in(message.signed, message.result, lease.id, lease.fence, public, self.run):
            raise leasing.LeaseError("signature", "the result is not what its device has signed")
        return json.loads(message.signed)

    def show(self, caller: Caller, number: str, message: Shown) -> Receipt:
        """States of an interval that is to be replayed, from who made them."""
        with self.database.writing() as session:
            once(session, caller.signed)
            results.show(session, self.book, caller.account, number, message, self.clock.date())
        return self.receipt(number)

    def receipt(self, number: str) -> Receipt:
        """What has become of a result."""
        with self.database.reading() as session:
            return results.receipt(session, self.book.signer, number, self.url)

    def reconcile(self, caller: Caller, message: Reconcile) -> Reconciled:
        """What a worker that starts should do with what it holds."""
        now = self.clock.date()
        leases: dict[str, Any] = {}
        with self.database.writing(durable=False) as session:
            once(session, caller.signed)
            for held in message.leases:
                leases[held.lease] = self._advice(session, caller, held.lease, held.fence, held.done)
            here = set(session.scalars(select(BlobRow.sha256).where(BlobRow.sha256.in_(message.files))))
            lost = holding.missing(session, message.files)
        words = {**dict.fromkeys(lost, "submit"), **dict.fromkeys(here, "keep")}
        files: dict[str, Any] = {name: words.get(name, "drop") for name in message.files}
        return Reconciled(leases=leases, files=files, now=now)

    def _advice(self, session: Session, caller: Caller, name: str, fence: int, done: bool) -> str:
        try:
            lease, row = self._own(session, caller, name, fence)
        except (NotYours, leasing.LeaseError):
            return "drop"
        if lease.state == "submitted" or row.state in ("accepted", "final", "quarantined"):
            return "drop"
        if done:
            return "submit"
        current = lease.fence == row.fence and row.state in ("leased", "suspect", "orphaned")
        return "keep" if current else "drop"

    def _own(self, session: Session, caller: Caller, name: str, fence: int) -> tuple[LeaseRow, TaskRow]:
        lease = session.get(LeaseRow, name)
        if lease is None or lease.account != caller.account:
            raise NotYours("there is no such lease of yours")
        if lease.fence != fence:
            raise leasing.LeaseError("fence", f"this lease has fence {lease.fence}, not {fence}")
        if lease.state == banning.BARRED:
            raise leasing.LeaseError("banned", banning.SENTENCE)
        return lease, session.get_one(TaskRow, lease.task)

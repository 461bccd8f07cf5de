"""One segment of a training while it is looked at: what was drawn for it, what is known of its maker."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from atoll.net.policing import Police
from atoll.net.protocol import Numerics, Result, Unit
from atoll.net.tables import Device, RecordRow, SubmissionRow, TaskRow
from atoll.net.verification import policy
from atoll.net.verification.beacon import BeaconError, Draw

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

AWAKE = 3600.0
"""Seconds within which an account that was heard of may audit."""
FEW = 3
"""Accounts with fewer of which nobody is asked unless it is necessary: there would be nobody left to ask."""


@dataclass(frozen=True)
class Case:
    """One segment, while it is looked at."""

    here: "Coordinator"
    police: Police
    session: Session
    submission: SubmissionRow
    row: TaskRow

    @property
    def unit(self) -> Unit:
        """What was asked for."""
        return Unit.model_validate(self.row.unit)

    @property
    def result(self) -> Result:
        """What was handed in."""
        return Result.model_validate(self.submission.result)

    @property
    def audit(self) -> dict[str, Any]:
        """What the beacon has drawn for it."""
        drawn: dict[str, Any] = self.submission.facts["audit"]
        return drawn

    @property
    def phase(self) -> str:
        """Which audit is under way: what was said in an earlier one does not count."""
        return f"{self.audit['phase']}{'+' * self.audit.get('again', 0)}"

    def awake(self) -> int:
        """How many accounts are there, and may work."""
        return int(self.session.scalar(self._there()) or 0)

    def left(self) -> int:
        """How many of them could still look: not who made it, and not who has looked in this audit."""
        key = f"{self.phase}|{self.submission.id}"
        audits = select(SubmissionRow.account).join(TaskRow, TaskRow.id == SubmissionRow.task)
        makers = {self.submission.account, *(name for name, *_ in (self.row.micro or {}).get("shares", []))}
        others = Device.account.not_in(makers) & Device.account.not_in(audits.where(TaskRow.key == key))
        return int(self.session.scalar(self._there().where(others)) or 0)

    def _there(self) -> Select[Any]:
        hard = func.sum(RecordRow.hard) >= self.police.audit.strikes
        barred = select(RecordRow.account).group_by(RecordRow.account).having(hard)
        seen = Device.seen > self.here.clock.date() - AWAKE
        return select(func.count(Device.account.distinct())).where(seen, Device.account.not_in(barred))

    def note(self, **facts: Any) -> None:
        """Remember something of it."""
        self.submission.facts = {**self.submission.facts, **facts}

    def change(self, **facts: Any) -> None:
        """Remember something of its audit."""
        self.note(audit={**self.audit, **facts})


def spoken(police: Police, submission: SubmissionRow) -> Draw | None:
    """What the beacon says of a submission; None while it says nothing. It may have to be asked elsewhere."""
    try:
        return police.beacon.draw(police.beacon.settings.round_after(submission.created))
    except BeaconError:
        return None


def draw(case: Case, drawn: Draw, doubts: Mapping[str, str]) -> None:
    """Let the beacon say what is asked of a segment; if that is odd, by two auditors."""
    submission = case.submission
    facts = {"submission": submission.id, **drawn.model_dump(mode="json")}
    case.here.book.note(case.session, "beacon", facts, case.here.clock.date())
    intervals = max(1, len(case.result.chain) - 1)
    audit = policy.audit_of(
        case.police.audit,
        _record(case),
        drawn.bytes,
        submission.id,
        intervals,
        {**submission.facts.get("doubts", {}), **doubts},
    )
    number = audit.interval
    if number is None:  # it is looked at before it is final, if not before it is accepted
        number = int(policy.fraction(drawn.bytes, submission.id, "interval") * intervals)
    whole = policy.released_whole(case.police.audit, drawn.bytes, submission.id)
    case.note(
        audit={
            "due": audit.due,
            "reason": audit.reason,
            "repeated": (audit.repeated or bool(doubts)) and case.awake() > FEW,
            "interval": number,
            "phase": "accept" if audit.due else "release",
            "owed": "whole" if whole else "interval",
            "value": drawn.value,
            "since": case.here.clock.date(),
        }
    )
    challenge(case)


def challenge(case: Case) -> None:
    """Tell the log what is asked of a segment."""
    first, last = interval_of(case.unit, case.audit["interval"])
    facts = {"submission": case.submission.id, "first": first, "last": last, "auditor": None}
    facts |= {name: value for name, value in case.audit.items() if name not in ("value", "since")}
    case.here.book.note(case.session, "challenge", facts, case.here.clock.date())


def _record(case: Case) -> policy.Record:
    """How far an account is known in this arithmetic, and what it has at stake."""
    submission, unit = case.submission, case.unit
    row = record_row(case.session, submission.account, case.result.numerics)
    held = case.here.book.escrow(case.session, submission.account, unit.stage)
    return policy.Record(row.verified, held / max(1, unit.price))


def record_row(session: Session, account: str, numerics: Numerics) -> RecordRow:
    """What is known of an account in a class of arithmetic."""
    row = session.get(RecordRow, (account, numerics.digest))
    if row is None:
        row = RecordRow(account=account, numerics=numerics.digest, verified=0, hard=0)
        session.add(row)
        session.flush()
    return row


def interval_of(unit: Unit, number: int) -> tuple[int, int]:
    """The steps of an interval."""
    first = unit.first + number * unit.every
    return first, min(first + unit.every, unit.last)


def unsettled(session: Session) -> int:
    """Segments that the run goes on from, and that are not final."""
    waiting = select(func.count()).where(
        TaskRow.role == "train", TaskRow.state.in_(("submitted", "checked", "accepted"))
    )
    return int(session.scalar(waiting) or 0)

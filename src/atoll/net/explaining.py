"""Why a unit is where it is, and what is known of an account: for whoever asks, from what is written down."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from atoll.net import auditors, ledger
from atoll.net.coordinator import Coordinator
from atoll.net.protocol import Unit
from atoll.net.results import NotYours
from atoll.net.tables import Account, LeaseRow, RecordRow, SubmissionRow, TaskRow, VerdictRow

SHOWN = 100
"""Rows of a table on a page."""
STATES = {
    "open": "Nobody works on it: it is given to the next machine that fits.",
    "leased": "A machine works on it.",
    "suspect": "Its holder has not been heard of for a while; nothing is taken from it yet.",
    "orphaned": "Its holder is silent, or its time is up: it is given to the next machine that fits.",
    "submitted": "A result is here and is looked at next.",
    "accepted": "A result was accepted.",
    "final": "A result was accepted, and nobody disputes it any more.",
    "quarantined": "It failed on several machines, so that it is the unit's own fault: a person must look.",
    "void": "What it was to be made from turned out to be false; it is opened again when that is made anew.",
}


@dataclass(frozen=True)
class UnitPage:
    """All that happened to a unit, and why it is where it is."""

    task: TaskRow
    sentence: str
    leases: list[tuple[LeaseRow, int]]
    """With the numbers of their accounts."""
    submissions: list[SubmissionRow]
    verdicts: list[tuple[VerdictRow, int | None]]
    audits: list[TaskRow]


@dataclass(frozen=True)
class AccountPage:
    """What an account has done, what others found of it, what it earned."""

    number: int
    nickname: str
    records: list[RecordRow]
    barred: str
    """Why it gets no more work; empty if it does."""
    balances: list[tuple[str, str, int]]
    """Lineage, bucket, milli-credits."""
    submissions: list[tuple[SubmissionRow, TaskRow]]
    verdicts: list[tuple[VerdictRow, bool]]
    """With whether it judged, and was not judged."""
    credits: list[tuple[ledger.Event, int]]
    """Events with what they brought, each an entry of the log."""


def unit(here: Coordinator, number: int) -> UnitPage:
    """One unit."""
    with here.database.reading() as session:
        task = session.get(TaskRow, number)
        if task is None:
            raise NotYours("there is no such unit")
        leases = session.execute(
            select(LeaseRow, Account.number)
            .join(Account, Account.id == LeaseRow.account)
            .where(LeaseRow.task == task.id)
            .order_by(LeaseRow.fence)
            .limit(SHOWN)
        )
        rows = select(SubmissionRow).where(SubmissionRow.task == task.id).order_by(SubmissionRow.number)
        submissions = list(session.scalars(rows.limit(SHOWN)))
        names = [one.id for one in submissions]
        verdicts = session.execute(
            select(VerdictRow, Account.number)
            .outerjoin(Account, Account.id == VerdictRow.by)
            .where(VerdictRow.submission.in_(names))
            .order_by(VerdictRow.id)
            .limit(SHOWN)
        )
        audits = list(session.scalars(select(TaskRow).where(TaskRow.about.in_(names)).order_by(TaskRow.id)))
        return UnitPage(
            task,
            why(session, task),
            [(lease, count) for lease, count in leases],
            submissions,
            [(verdict, count) for verdict, count in verdicts],
            audits,
        )


def why(session: Session, task: TaskRow) -> str:
    """In one or two sentences."""
    if task.state == "checked":
        return _checked(session, task)
    sentence = STATES.get(task.state, task.state)
    candidate = session.get(SubmissionRow, task.candidate) if task.candidate else None
    if task.state == "accepted" and candidate is not None and "audit" in candidate.facts:
        audit = candidate.facts["audit"]
        what = "all of it is" if auditors.is_whole(audit) else "an interval of it is"
        return f"{sentence} Before it is final {what} replayed by another account."
    if task.state == "open" and task.fence:
        return f"{sentence} It was in somebody's hands {task.fence} times."
    return sentence


def _checked(session: Session, task: TaskRow) -> str:
    """A result that waits for others."""
    candidate = session.get(SubmissionRow, task.candidate)
    unit = Unit.model_validate(task.unit)
    if unit.quorum > 1:
        return f"A result is here; {unit.quorum} accounts must come to the same."
    if task.role == "audit":
        return "The auditor has spoken; other auditors of the same interval have not."
    if candidate is None or "audit" not in candidate.facts:
        return "A result is here; the beacon's next round says whether and where it is replayed."
    audit = candidate.facts["audit"]
    if not audit["due"]:
        return "It is not audited now, and waits for what it was built on."
    steps = auditors.wanted(candidate, unit)
    if steps:
        words = " and ".join(map(str, steps))
        return f"It is audited ({audit['reason']}): its maker is asked for the states of steps {words}."
    return f"It is audited ({audit['reason']}): another account replays what the beacon has drawn."


def account(here: Coordinator, number: int) -> AccountPage:
    """One account by the number that pages show of it."""
    with here.database.reading() as session:
        row = session.scalars(select(Account).where(Account.number == number)).first()
        if row is None:
            raise NotYours("there is no such account")
        mine = select(SubmissionRow, TaskRow).join(TaskRow, TaskRow.id == SubmissionRow.task)
        handed = session.execute(
            mine.where(SubmissionRow.account == row.id).order_by(SubmissionRow.number.desc()).limit(SHOWN)
        )
        own = select(SubmissionRow.id).where(SubmissionRow.account == row.id)
        about = or_(VerdictRow.by == row.id, VerdictRow.submission.in_(own))
        verdicts = session.scalars(
            select(VerdictRow).where(about).order_by(VerdictRow.id.desc()).limit(SHOWN)
        )
        return AccountPage(
            row.number,
            row.nickname,
            list(session.scalars(select(RecordRow).where(RecordRow.account == row.id))),
            here.judge.barred(session, row.id),
            _balances(session, row.id),
            [(submission, task) for submission, task in handed],
            [(verdict, verdict.by == row.id) for verdict in verdicts],
            _credits(session, row.id),
        )


def _balances(session: Session, account: str) -> list[tuple[str, str, int]]:
    own = (ledger.Posting.lineage, ledger.Posting.bucket)
    sums = select(*own, func.sum(ledger.Posting.amount)).where(ledger.Posting.account == account)
    return [
        (lineage, bucket, int(amount)) for lineage, bucket, amount in session.execute(sums.group_by(*own))
    ]


def _credits(session: Session, account: str) -> list[tuple[ledger.Event, Any]]:
    amount = func.sum(ledger.Posting.amount)
    sums = select(ledger.Posting.index, amount).where(ledger.Posting.account == account)
    newest = sums.group_by(ledger.Posting.index).order_by(ledger.Posting.index.desc()).limit(SHOWN)
    brought = {index: int(total) for index, total in session.execute(newest)}
    events = select(ledger.Event).where(ledger.Event.index.in_(brought)).order_by(ledger.Event.index.desc())
    return [(event, brought[event.index]) for event in session.scalars(events)]

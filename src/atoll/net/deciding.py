"""What becomes of a result once it is judged: verdicts, decisions and credit, each told in the log."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from atoll.net import filing, leasing
from atoll.net.protocol import Result, Unit
from atoll.net.tables import LeaseRow, SubmissionRow, TaskRow, VerdictRow, happened

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

COORDINATOR = "coordinator"
"""Who judges where no auditor is asked."""
AUDITS = "audits"
"""The lineage of what auditors earn: looking carelessly costs that, and nothing else."""


def verdict(
    here: "Coordinator",
    session: Session,
    submission: SubmissionRow,
    check: str,
    outcome: str,
    *,
    by: str = COORDINATOR,
    hard: bool = False,
    evidence: Mapping[str, Any] | None = None,
    phase: str = "",
    about: str = "",
) -> VerdictRow:
    """Write down what a check came to, here and in the log."""
    now = here.clock.date()
    unit = session.get_one(LeaseRow, submission.lease).unit["name"]
    facts: dict[str, Any] = {"submission": submission.id, "unit": unit, "check": check, "verdict": outcome}
    facts |= {"by": by, "hard": hard, "evidence": dict(evidence or {}), "phase": phase, "about": about}
    row = VerdictRow(
        submission=submission.id,
        check=check,
        verdict=outcome,
        hard=hard,
        by=by,
        phase=phase,
        about=about,
        evidence=dict(evidence or {}),
        statement=here.book.note(session, "verdict", facts, now),
        created=now,
    )
    session.add(row)
    session.flush()
    return row


def verdicts(session: Session, submission: str, phase: str | None = None) -> list[VerdictRow]:
    """What checks of a submission came to, in order; of one audit, if it is named."""
    rows = select(VerdictRow).where(VerdictRow.submission == submission).order_by(VerdictRow.id)
    if phase is not None:
        rows = rows.where(VerdictRow.phase == phase)
    return list(session.scalars(rows))


def provisional(here: "Coordinator", session: Session, submission: SubmissionRow, row: TaskRow) -> None:
    """The run goes on from a result while it is still looked at; nobody is paid yet."""
    result = Result.model_validate(submission.result)
    submission.facts = {**submission.facts, "before": filing.apply(session, result)}
    submission.canonical, submission.state = True, "checked"
    row.task = leasing.judge(row.task, submission.id, "checked", "", here.terms)


def accept(
    here: "Coordinator",
    session: Session,
    submission: SubmissionRow,
    row: TaskRow,
    *,
    canonical: bool,
    price: int | None = None,
    check: str = "admission",
) -> None:
    """A result is good: its files become the run's, and whoever made it is credited."""
    now = here.clock.date()
    unit, result = Unit.model_validate(row.unit), Result.model_validate(submission.result)
    if canonical and "before" not in submission.facts:
        submission.facts = {**submission.facts, "before": filing.apply(session, result)}
    row.task = leasing.judge(row.task, submission.id, "accepted", "", here.terms)
    submission.canonical = canonical
    worth = unit.price if price is None else price
    shares = _shares(row, submission, unit, worth) if price is None else {submission.account: worth}
    submission.price = shares.get(submission.account, 0)
    if not verdicts(session, submission.id):
        verdict(here, session, submission, check, "pass")
    decide(here, session, submission, "accepted", "")
    lineage = AUDITS if unit.role == "audit" else unit.stage
    for account, amount in shares.items():
        if amount:
            event = f"earn {submission.id} {account[:16]}"
            here.book.credit(session, event, account, amount, lineage, submission.id, now)


def _shares(row: TaskRow, submission: SubmissionRow, unit: Unit, worth: int) -> dict[str, int]:
    """Who did how much of a unit that went from hand to hand: by the steps of the states handed over."""
    shares: dict[str, int] = {}
    done, total = unit.first, unit.last - unit.first
    for account, lease, step in (row.micro or {}).get("shares", []):
        if lease != submission.lease and step > done and total:
            shares[account] = shares.get(account, 0) + worth * (step - done) // total
            done = step
    shares[submission.account] = shares.get(submission.account, 0) + worth - sum(shares.values())
    return shares


def reject(
    here: "Coordinator",
    session: Session,
    submission: SubmissionRow,
    row: TaskRow,
    reason: str,
    *,
    blame: bool = True,
) -> None:
    """A result is not good; the task is open again, or another result is looked at."""
    later = select(SubmissionRow.id).where(
        SubmissionRow.task == row.id,
        SubmissionRow.number > submission.number,
        SubmissionRow.state.in_(("received", "checked")),
    )
    waiting = list(session.scalars(later.order_by(SubmissionRow.number)))
    machine = submission.device if blame else ""
    row.task = leasing.judge(row.task, submission.id, "rejected", machine, here.terms, waiting)
    decide(here, session, submission, "rejected", reason)
    now = here.clock.date()
    happened(session, now, "result_rejected", task=row.name, submission=submission.id, reason=reason)
    if row.state == "quarantined":
        happened(session, now, "unit_quarantined", task=row.name, reason=reason)
        here.book.note(session, "quarantine", {"unit": row.name, "reason": reason}, now)


def decide(here: "Coordinator", session: Session, submission: SubmissionRow, state: str, reason: str) -> None:
    """Write a decision down; `final` is an acceptance that nobody disputes any more."""
    now = here.clock.date()
    submission.reason, submission.decided = reason, now
    submission.state = "accepted" if state == "final" else state
    lease = session.get_one(LeaseRow, submission.lease)
    grounds = [row.statement for row in verdicts(session, submission.id) if row.statement is not None]
    facts = {"submission": submission.id, "unit": lease.unit["name"], "verdicts": grounds, "reason": reason}
    facts |= {"canonical": submission.canonical, "price": submission.price}
    here.book.note(
        session, "decision", {**facts, "state": "rejected" if state == "duplicate" else state}, now
    )

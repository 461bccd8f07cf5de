"""Accounts whose work was proven false: no more of it is given to them, and what they hold goes to others.

Proven means by two auditors of other accounts, or by a canary; what is odd, late or inconclusive is no proof.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from atoll.net import leasing
from atoll.net.policing import Police
from atoll.net.tables import LeaseRow, SubmissionRow, TaskRow, VerdictRow, happened

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

BARRED = "barred"
"""The state of a lease that was taken from an account."""
SENTENCE = "your account gets no more work here: what it handed in was proven false"


def proofs(session: Session, account: str) -> list[VerdictRow]:
    """Verdicts that proved an account's work false, in order."""
    rows = select(VerdictRow).join(SubmissionRow, SubmissionRow.id == VerdictRow.submission)
    false = rows.where(SubmissionRow.account == account, VerdictRow.hard, VerdictRow.verdict == "fail")
    return list(session.scalars(false.order_by(VerdictRow.id)))


def reason(session: Session, police: Police | None, account: str) -> str:
    """Why an account gets no more work, with the entries of the log that prove it; nothing if it does."""
    return _sentence(_enough(session, police, account))


def _enough(session: Session, police: Police | None, account: str) -> list[VerdictRow]:
    """The proofs against an account, if they are so many that it is shut out."""
    against = [] if police is None else proofs(session, account)
    return [] if police is None or len(against) < police.audit.strikes else against


def _sentence(against: Sequence[VerdictRow]) -> str:
    entries = ", ".join(str(row.statement) for row in against if row.statement is not None)
    return f"{SENTENCE} {len(against)} times (entries {entries or 'unknown'} of the log)" if against else ""


def bar(here: "Coordinator", session: Session, account: str) -> bool:
    """Once an account has failed so often, take back what it holds; whether it had."""
    against = _enough(session, here.judge.police, account)
    if not against:
        return False
    now = here.clock.date()
    held = select(LeaseRow).where(LeaseRow.account == account, LeaseRow.state == "active")
    units = []
    for lease in session.scalars(held):
        task = session.get_one(TaskRow, lease.task)
        task.task = leasing.release(task.task, lease.fence, "", False, here.terms)
        lease.state = BARRED
        units.append(task.name)
    sentence, entries = _sentence(against), [row.statement for row in against]
    facts = {"account": account, "reason": sentence, "verdicts": entries, "units": units[:100]}
    here.book.note(session, "ban", facts, now)
    happened(session, now, "account_banned", account=account, reason=sentence)
    return True

"""Who is asked to look at a segment again, and what: an interval whose states are shown, or all of it."""

from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from atoll.net import leasing, undoing
from atoll.net.cases import FEW, Case, interval_of
from atoll.net.policing import Police
from atoll.net.protocol import File, Numerics, Result, Unit
from atoll.net.tables import Device, SubmissionRow, TaskRow
from atoll.net.verification import asking, policy

Canary = File | Literal["unmade"] | None
"""A state that is known to be bad, for the next auditor; None where none is due or none can be made."""


def wanted(submission: SubmissionRow, unit: Unit) -> tuple[int, ...]:
    """Steps whose states a worker should show, so that an interval can be replayed and not all of it."""
    audit = submission.facts.get("audit")
    if audit is None or is_whole(audit) or submission.facts.get("final"):
        return ()
    shown = submission.facts.get("shown", {})
    ends = interval_of(unit, audit["interval"])
    return tuple(step for step in ends if unit.first < step < unit.last and str(step) not in shown)


def is_whole(audit: Mapping[str, Any]) -> bool:
    """Whether all of a segment is asked for."""
    return bool(audit["phase"] == "release" and audit["owed"] == "whole" and not audit.get("narrowed"))


def states_of(submission: SubmissionRow, unit: Unit) -> dict[int, list[File]]:
    """States of a segment that are here, by step: the last one, and what was shown."""
    result = Result.model_validate(submission.result)
    end = asking.state_name(unit.last)
    states = {unit.last: [file for file in result.outputs if file.path.endswith(f"/{end}")]}
    for step, file in submission.facts.get("shown", {}).items():
        states[int(step)] = [File.model_validate(file)]
    return states


def question(submission: SubmissionRow, unit: Unit) -> Unit:
    """The unit that an auditor is asked to do."""
    audit, states = submission.facts["audit"], states_of(submission, unit)
    if not is_whole(audit):
        return asking.audit_unit(unit, audit["interval"], states)
    newest = len(range(unit.first, unit.last, unit.every)) - 1
    return asking.audit_unit(unit, newest, {unit.last: states[unit.last]})


def ask(case: Case, canary: Canary) -> None:
    """Open one more audit, unless one is under way or the states for it are still to come."""
    waited = case.here.clock.date() - case.audit["since"]
    if wanted(case.submission, case.unit) and waited < case.police.audit.patience:
        return
    key = f"{case.phase}|{case.submission.id}"
    rows = list(case.session.scalars(select(TaskRow).where(TaskRow.key == key)))
    over = (*leasing.DONE, *leasing.JUDGED, undoing.VOID, "quarantined")
    if any(row.state not in over for row in rows):
        return
    unit = question(case.submission, case.unit)
    if is_canary_next(case.police, case.submission, len(rows), case.awake()):
        if canary == "unmade":
            return
        if canary is not None:
            inputs = tuple(canary if file.path == asking.COMMITTED else file for file in unit.inputs)
            unit = unit.model_copy(update={"inputs": inputs})
            case.note(canaries=[*case.submission.facts.get("canaries", []), unit.digest])
    now, copy = case.here.clock.date(), len(rows)
    task = TaskRow(key=key, copy=copy, state="open", failed=[], about=case.submission.id, created=now)
    task.describe(unit)
    case.session.add(task)
    case.change(accounts=case.awake())


def is_canary_next(police: Police, submission: SubmissionRow, copies: int, accounts: int) -> bool:
    """Whether the next auditor of a segment is tried with a state that is known to be bad.

    Once for a segment, and where three are left besides: who was tried does not look at it again.
    """
    audit = submission.facts["audit"]
    purpose = f"{submission.id} {audit['phase']} {copies}"
    if accounts <= FEW + 1 or submission.facts.get("canaries"):
        return False
    return policy.is_canary(police.audit, bytes.fromhex(audit["value"]), purpose)


def may(session: Session, police: Police, row: TaskRow, device: Device, now: float) -> bool:
    """Whether a machine may do an audit: never of its own account; at first who was drawn, of its class."""
    submission = session.get_one(SubmissionRow, row.about)
    work = session.get_one(TaskRow, submission.task)
    hands = {account for account, *_ in (work.micro or {}).get("shares", [])}
    if device.account in {submission.account, *hands}:
        return False
    audit, waited = submission.facts["audit"], now - row.created
    value = bytes.fromhex(audit["value"])
    if not policy.eligible(
        value, submission.id, device.account, audit.get("accounts", 0), waited, police.audit
    ):
        return False
    if waited >= police.audit.patience:
        return True
    theirs = Result.model_validate(submission.result).numerics
    own = Numerics.model_validate(device.capabilities.get("numerics") or {})
    pinned = ("precision", "compiled", "micro_batch")  # by the manifest, for everybody
    own = own.model_copy(update={name: getattr(theirs, name) for name in pinned})
    return police.may_compare(own, theirs)

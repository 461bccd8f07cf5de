"""A result that turns out false, taken out of the run with all that was built on it."""

from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from atoll.net import deciding, filing, leasing
from atoll.net.protocol import Result, Unit
from atoll.net.tables import SubmissionRow, TaskRow, happened

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

VOID = "void"
"""The state of a task whose inputs are gone; it is opened again when there are others."""
Place = tuple[str, str]
"""A file of the run: its path and its digest; small files of different stages may have the same bytes."""


def undo(
    here: "Coordinator",
    session: Session,
    submission: SubmissionRow,
    row: TaskRow,
    reason: str,
    *,
    blame: bool,
) -> list[SubmissionRow]:
    """Put the run's files back to before a result, reject it and all that was built on it; what that was.

    Whoever built on it has done nothing wrong: what was credited stays. `blame` is whether the unit counts as
    failed on that machine, as where auditors came to no conclusion; of what is false that says nothing.
    """
    followers = built_on(session, submission)
    for one in sorted([submission, *followers], key=lambda one: one.number, reverse=True):
        filing.put_back(session, one.facts.get("before") or {})
        one.facts = {name: value for name, value in one.facts.items() if name != "before"}
        one.canonical = False
    gone = {place for one in [submission, *followers] for place in outputs(one)}
    for one in followers:
        deciding.decide(here, session, one, "rejected", f"it was built on what is gone: {reason}"[:500])
        close_audits(session, one.id)
    close_audits(session, submission.id)
    for task in _tasks(session, gone):
        if task.id != row.id:
            task.state, task.candidate, task.micro = VOID, "", None
    if row.state in leasing.DONE:
        row.task = leasing.reopen(row.task)
        deciding.decide(here, session, submission, "rejected", reason)
    else:
        deciding.reject(here, session, submission, row, reason, blame=blame)
    row.micro = None
    names = [one.id for one in followers]
    happened(session, here.clock.date(), "result_undone", task=row.name, reason=reason, followers=names)
    return followers


def built_on(session: Session, submission: SubmissionRow) -> list[SubmissionRow]:
    """All that the run goes on from and that read, directly or not, what a result made; in order."""
    later = select(SubmissionRow, TaskRow).join(TaskRow, TaskRow.id == SubmissionRow.task)
    rows = session.execute(
        later.where(SubmissionRow.canonical, SubmissionRow.number > submission.number).order_by(
            SubmissionRow.number
        )
    )
    made, followers = outputs(submission), []
    for one, task in rows:
        if made & reads(task):
            followers.append(one)
            made |= outputs(one)
    return followers


def outputs(submission: SubmissionRow) -> set[Place]:
    """What a result made."""
    return {(file.path, file.sha256) for file in Result.model_validate(submission.result).outputs}


def reads(task: TaskRow) -> set[Place]:
    """What a unit reads."""
    return {(file.path, file.sha256) for file in Unit.model_validate(task.unit).inputs}


def close_audits(session: Session, submission: str) -> None:
    """Nobody need look at a result any more."""
    waiting = select(TaskRow).where(TaskRow.about == submission, TaskRow.state.not_in(leasing.DONE))
    for task in session.scalars(waiting):
        if task.state not in leasing.JUDGED:
            task.state = "final"


def _tasks(session: Session, gone: set[Place]) -> list[TaskRow]:
    """Tasks that read what is gone."""
    return [
        task for task in session.scalars(select(TaskRow).where(TaskRow.about == "")) if gone & reads(task)
    ]

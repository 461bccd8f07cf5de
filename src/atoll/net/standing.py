"""How a run stands, for pages and programs: counted by the database, the newest of everything first."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from atoll.net import leasing
from atoll.net.coordinator import Coordinator
from atoll.net.results import NotYours
from atoll.net.tables import (
    Account,
    Device,
    Happening,
    LeaseRow,
    Outage,
    PathRow,
    SubmissionRow,
    TaskRow,
)

SHOWN = 100
"""Rows of a table on a page."""
AWAKE = 3600.0
"""Seconds within which a machine that was heard of is there."""


@dataclass(frozen=True)
class Standing:
    """A run at one moment."""

    now: float
    done: bool
    tasks: dict[str, int]
    """How many tasks are in each state."""
    stages: list[dict[str, Any]]
    """By name: how many tasks there are and how many are done."""
    submissions: dict[str, int]
    machines: int
    awake: int
    working: int
    """Machines that hold a unit."""
    files: int
    bytes: int
    happenings: list[Happening]
    outages: int


def standing(here: Coordinator) -> Standing:
    """Look at everything once."""
    now = here.clock.date()
    with here.database.reading() as session:
        tasks = _counts(session, TaskRow.state)
        files, size = session.execute(select(func.count(), func.sum(PathRow.size)).select_from(PathRow)).one()
        return Standing(
            now=now,
            done=here.done,
            tasks=tasks,
            stages=_stages(session),
            submissions=_counts(session, SubmissionRow.state),
            machines=session.scalar(select(func.count()).select_from(Device)) or 0,
            awake=session.scalar(select(func.count()).where(Device.seen > now - AWAKE)) or 0,
            working=session.scalar(_holders()) or 0,
            files=files,
            bytes=int(size or 0),
            happenings=list(session.scalars(select(Happening).order_by(Happening.id.desc()).limit(30))),
            outages=session.scalar(select(func.count()).select_from(Outage)) or 0,
        )


def _holders() -> Select[Any]:
    """How many machines hold a unit now."""
    held = select(TaskRow.holder).where(TaskRow.state.in_(leasing.HELD))
    return select(func.count(LeaseRow.device.distinct())).where(LeaseRow.id.in_(held))


def _counts(session: Session, column: Any) -> dict[str, int]:
    rows = session.execute(select(column, func.count()).group_by(column)).all()
    return {str(state): int(number) for state, number in rows}


def _stages(session: Session) -> list[dict[str, Any]]:
    rows = session.execute(
        select(TaskRow.stage, TaskRow.state, func.count(), func.min(TaskRow.id)).group_by(
            TaskRow.stage, TaskRow.state
        )
    )
    stages: dict[str, dict[str, Any]] = {}
    for stage, state, number, first in rows:
        entry = stages.setdefault(stage, {"name": stage, "tasks": 0, "done": 0, "held": 0, "first": first})
        entry["tasks"] += number
        entry["first"] = min(entry["first"], first)
        entry["done"] += number if state in leasing.DONE else 0
        entry["held"] += number if state in (*leasing.HELD, *leasing.JUDGED) else 0
    return sorted(stages.values(), key=lambda entry: entry["first"])


def queue(here: Coordinator) -> list[tuple[TaskRow, LeaseRow | None]]:
    """Tasks that are not done, with who holds them."""
    with here.database.reading() as session:
        rows = session.execute(
            select(TaskRow, LeaseRow)
            .outerjoin(LeaseRow, LeaseRow.id == TaskRow.holder)
            .where(TaskRow.state.not_in(leasing.DONE))
            .order_by(TaskRow.id)
            .limit(SHOWN)
        )
        return [(task, lease) for task, lease in rows]


def workers(here: Coordinator) -> list[dict[str, Any]]:
    """Machines that were heard of last; of an account only its number is shown, of a machine its kind."""
    with here.database.reading() as session:
        rows = session.execute(
            select(Device, Account.number, Account.nickname)
            .join(Account, Account.id == Device.account)
            .order_by(Device.seen.desc())
            .limit(SHOWN)
        )
        return [_worker(session, device, number, nickname) for device, number, nickname in rows]


def _worker(session: Session, device: Device, number: int, nickname: str) -> dict[str, Any]:
    lease = session.execute(
        select(TaskRow.name, LeaseRow.step)
        .join(TaskRow, TaskRow.id == LeaseRow.task)
        .where(LeaseRow.device == device.id, LeaseRow.state == "active")
        .limit(1)
    ).first()
    accepted = session.scalar(
        select(func.count()).where(SubmissionRow.device == device.id, SubmissionRow.state == "accepted")
    )
    numerics = device.capabilities.get("numerics", {})
    return {
        "name": nickname or f"account {number}",
        "number": number,
        "device": device.id[:8],
        "seen": device.seen,
        "kind": numerics.get("device") or "",
        "doing": f"{lease[0]}, step {lease[1]}" if lease else "",
        "accepted": accepted or 0,
    }


def submissions(here: Coordinator) -> list[tuple[SubmissionRow, str]]:
    """The newest results with the names of their units."""
    with here.database.reading() as session:
        rows = session.execute(
            select(SubmissionRow, TaskRow.name)
            .join(TaskRow, TaskRow.id == SubmissionRow.task)
            .order_by(SubmissionRow.number.desc())
            .limit(SHOWN)
        )
        return [(submission, name) for submission, name in rows]


def submission(here: Coordinator, number: str) -> tuple[SubmissionRow, LeaseRow]:
    """One result and the lease that it came under."""
    with here.database.reading() as session:
        row = session.get(SubmissionRow, number)
        if row is None:
            raise NotYours("there is no such submission")
        return row, session.get_one(LeaseRow, row.lease)

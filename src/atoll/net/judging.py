"""What becomes of a result: accepted into the run's files and credited, or rejected with a reason."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from atoll.net import admitting, leasing
from atoll.net.crash import crash_point
from atoll.net.protocol import File, Result, Unit
from atoll.net.tables import LeaseRow, PathRow, Setting, SubmissionRow, TaskRow, happened

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

TABLE = "table"
"""The setting that counts changes of the run's files."""
MOST_COPIES = 9
"""Machines that are asked about a unit on which they do not agree; then it is the unit's own fault."""


class Judge:
    """Decides about submissions, each in one transaction; what cannot be decided yet waits."""

    def consider(self, here: "Coordinator", number: str) -> None:
        """Look at a submission, and at whatever follows from it."""
        faults = self._faults(here, number)
        with here.database.writing() as session:
            submission = session.get_one(SubmissionRow, number)
            changed = self._decide(here, session, submission, faults)
        crash_point("judge.after-commit")
        if changed:
            advance(here)

    def _faults(self, here: "Coordinator", number: str) -> Mapping[str, str]:
        """What anybody would see to be wrong with a result; files are looked at while nobody waits."""
        with here.database.reading() as session:
            submission = session.get_one(SubmissionRow, number)
            unit = Unit.model_validate(session.get_one(LeaseRow, submission.lease).unit)
            result = Result.model_validate(submission.result)
        return admitting.findings(here.artifacts, unit, result).faults

    def _decide(
        self, here: "Coordinator", session: Session, submission: SubmissionRow, faults: Mapping[str, str]
    ) -> bool:
        """Whether the run's files have changed."""
        if submission.state not in ("received", "checked"):
            return False
        row = session.get_one(TaskRow, submission.task)
        if submission.id != row.candidate:
            self._second(here, session, submission, row)
            return False
        if faults:
            reason = "; ".join(f"{name}: {sentence}" for name, sentence in faults.items())
            reject(here, session, submission, row, reason[:500])
            return False
        unit = Unit.model_validate(row.unit)
        copies = session.scalars(select(TaskRow).where(TaskRow.key == row.key).order_by(TaskRow.copy)).all()
        if unit.quorum > 1:
            return self._quorum(here, session, list(copies), unit)
        accept(here, session, submission, row, canonical=True)
        return True

    def _second(self, here: "Coordinator", session: Session, submission: SubmissionRow, row: TaskRow) -> None:
        """A result that came after another one: credited as far as it was told of before."""
        same = select(TaskRow.id).where(TaskRow.key == row.key)
        first = session.scalars(
            select(SubmissionRow).where(SubmissionRow.task.in_(same), SubmissionRow.canonical)
        ).first()
        if first is None:
            return
        if first.content != submission.content:
            decide(here, session, submission, "duplicate", "another result of this unit was taken before")
            return
        lease = session.get_one(LeaseRow, submission.lease)
        unit, chain = Unit.model_validate(lease.unit), Result.model_validate(submission.result).chain
        done = chain.index(lease.head) * unit.every if lease.head and lease.head in chain else 0
        total = max(1, unit.last - unit.first)
        price = unit.price * min(done, total) // total
        accept(here, session, submission, row, canonical=False, price=price)

    def _quorum(self, here: "Coordinator", session: Session, copies: list[TaskRow], unit: Unit) -> bool:
        """Of copies of different accounts so many must be the same; who made another one is not paid."""
        if any(copy.state in leasing.DONE for copy in copies):
            return False
        candidates = [session.get(SubmissionRow, copy.candidate) for copy in copies if copy.candidate]
        votes: dict[str, list[SubmissionRow]] = {}
        for one in candidates:
            if one is not None:
                votes.setdefault(one.content, []).append(one)
                one.state = "checked"
        best = max(votes.values(), key=len, default=[])
        if len(best) < unit.quorum:
            if len(votes) > 1 and all(copy.candidate for copy in copies):
                happened(
                    session, here.clock.date(), "quorum_disagrees", task=copies[0].name, copies=len(copies)
                )
                if len(copies) < MOST_COPIES:
                    add_copy(session, copies, here.clock.date())
                else:
                    set_aside(here, session, copies, f"{len(copies)} machines came to {len(votes)} results")
            return False
        for copy in copies:
            mine = next((one for one in candidates if one is not None and one.id == copy.candidate), None)
            if mine is None:
                copy.state = "final"  # nobody needs it any more
            elif mine in best:
                accept(here, session, mine, copy, canonical=mine is best[0])
            else:
                reject(
                    here, session, mine, copy, "others who did the same came to another result", blame=False
                )
                copy.state = "final"
        return True


def accept(
    here: "Coordinator",
    session: Session,
    submission: SubmissionRow,
    row: TaskRow,
    *,
    canonical: bool,
    price: int | None = None,
) -> None:
    """A result is good: its files become the run's, and whoever made it is credited."""
    now = here.clock.date()
    unit, result = Unit.model_validate(row.unit), Result.model_validate(submission.result)
    if canonical:
        submission.facts = {**submission.facts, "before": apply(session, result)}
    row.task = leasing.judge(row.task, submission.id, "accepted", "", here.terms)
    submission.canonical = canonical
    worth = unit.price if price is None else price
    shares = _shares(row, submission, unit, worth) if price is None else {submission.account: worth}
    submission.price = shares.get(submission.account, 0)
    decide(here, session, submission, "accepted", "")
    for account, amount in shares.items():
        if amount:
            event = f"earn {submission.id} {account[:16]}"
            here.book.credit(session, event, account, amount, unit.stage, submission.id, now)


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


def set_aside(here: "Coordinator", session: Session, copies: list[TaskRow], reason: str) -> None:
    """A unit that no two machines do alike: nobody is blamed, nobody is asked again."""
    now = here.clock.date()
    for copy in copies:
        copy.state = "quarantined"
    happened(session, now, "unit_quarantined", task=copies[0].name, reason=reason)
    here.book.note(session, "quarantine", {"unit": copies[0].name, "reason": reason}, now)


def decide(here: "Coordinator", session: Session, submission: SubmissionRow, state: str, reason: str) -> None:
    """Write a decision down."""
    now = here.clock.date()
    submission.state, submission.reason, submission.decided = state, reason, now
    lease = session.get_one(LeaseRow, submission.lease)
    facts = {"submission": submission.id, "unit": lease.unit["name"], "verdicts": [], "reason": reason}
    facts |= {"canonical": submission.canonical, "price": submission.price}
    here.book.note(
        session, "decision", {**facts, "state": "rejected" if state == "duplicate" else state}, now
    )


def apply(session: Session, result: Result) -> dict[str, Any]:
    """Make a result's files the run's; what was there before, to be put back if it turns out to be false."""
    before: dict[str, Any] = {}
    for path in {*result.removed, *(file.path for file in result.outputs)}:
        row = session.get(PathRow, path)
        before[path] = None if row is None else {"sha256": row.sha256, "size": row.size}
    if result.removed:
        session.execute(delete(PathRow).where(PathRow.path.in_(result.removed)))
        session.expire_all()
    for file in result.outputs:
        session.merge(PathRow(path=file.path, sha256=file.sha256, size=file.size))
    _count(session)
    return before


def table_of(session: Session) -> dict[str, File]:
    """The run's files."""
    rows = session.execute(select(PathRow.path, PathRow.sha256, PathRow.size)).all()
    return {path: File.model_construct(path=path, sha256=sha256, size=size) for path, sha256, size in rows}


def add_files(session: Session, files: Mapping[str, File]) -> None:
    """Files that the run begins with."""
    for file in files.values():
        session.merge(PathRow(path=file.path, sha256=file.sha256, size=file.size))
    _count(session)


def _count(session: Session) -> int:
    row = session.get(Setting, TABLE)
    if row is None:
        row = Setting(name=TABLE, value={"version": 0})
        session.add(row)
    row.value = {"version": row.value["version"] + 1}
    return int(row.value["version"])


def advance(here: "Coordinator") -> None:
    """Open a task for every unit that can be worked on now; asked twice, nothing more happens."""
    while True:
        with here.database.reading() as session:
            version, table = session.get(Setting, TABLE), table_of(session)
        here.done = here.plan.finished(table)
        units = [] if here.done else here.plan.ready(table)
        crash_point("advance.before-commit")
        with here.database.writing() as session:
            current = session.get(Setting, TABLE)
            if (current and current.value) == (version and version.value):
                for unit in units:
                    if here.opened.get(key_of(unit)) != unit:
                        _open(session, unit, here.clock.date())
                break
    here.opened = {key_of(unit): unit for unit in units}
    crash_point("advance.after-commit")


def key_of(unit: Unit) -> str:
    """What there is one of at a time."""
    return f"{unit.role}|{unit.stage}|{'' if unit.share is None else unit.share}|{unit.first}"


def _open(session: Session, unit: Unit, now: float) -> None:
    key = key_of(unit)
    known = session.scalars(select(TaskRow).where(TaskRow.key == key)).all()
    if not known:
        for copy in range(unit.quorum):
            session.add(new_row(unit, key, copy, now))
        return
    for row in known:  # a unit that nobody has begun may have other inputs by now
        if row.digest != unit.digest and row.state == "open" and row.fence == 0:
            row.describe(unit)


def new_row(unit: Unit, key: str, copy: int, now: float) -> TaskRow:
    """A task that nobody has begun."""
    row = TaskRow(key=key, copy=copy, state="open", failed=[], created=now)
    row.describe(unit)
    return row


def add_copy(session: Session, copies: list[TaskRow], now: float) -> None:
    """One more opinion."""
    unit = Unit.model_validate(copies[0].unit)
    session.add(new_row(unit, copies[0].key, max(copy.copy for copy in copies) + 1, now))

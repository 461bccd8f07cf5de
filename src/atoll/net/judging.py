"""What becomes of a result: accepted into the run's files and credited, or rejected with a reason."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from atoll.net import admitting, auditors, audits, banning, cases, comparing, leasing, undoing, weighing
from atoll.net.auditors import Canary
from atoll.net.cases import Case
from atoll.net.crash import crash_point
from atoll.net.deciding import accept, decide, reject
from atoll.net.filing import TABLE, table_of
from atoll.net.policing import Police
from atoll.net.protocol import Result, Unit
from atoll.net.tables import Device, LeaseRow, RecordRow, Setting, SubmissionRow, TaskRow, happened
from atoll.net.verification import bands, quorum
from atoll.net.verification.admission import Findings
from atoll.net.verification.comparison import Report
from atoll.net.weighing import Weighed

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

MOST_COPIES = 9
"""Machines that are asked about a unit on which they do not agree; then it is the unit's own fault."""
WAITING = ("received", "checked")
"""States of submissions of which something is still to be found out."""


@dataclass(frozen=True)
class Seen:
    """What was found by looking at files, while nobody waits."""

    findings: Findings = field(default_factory=Findings)
    alike: frozenset[frozenset[str]] = frozenset()
    """Pairs of submissions that say the same within rounding."""
    report: Report | None = None
    canary: Canary = None
    weighed: Weighed | None = None


class Judge:
    """Decides about submissions, each in one transaction; what cannot be decided yet waits.

    Without `police` there are no audits: what is admitted is accepted, as among friends.
    """

    def __init__(
        self,
        police: Police | None = None,
        tools: comparing.Tools | None = None,
        scales: weighing.Scales | None = None,
    ) -> None:
        self.police, self.tools, self.scales = police, tools or comparing.Tools(), scales

    def consider(self, here: "Coordinator", number: str) -> None:
        """Look at a submission, and at whatever follows from it."""
        seen = self._look(here, number)
        with here.database.writing() as session:
            submission = session.get_one(SubmissionRow, number)
            changed = self._decide(here, session, submission, seen)
        crash_point("judge.after-commit")
        if changed:
            advance(here)

    def may(self, session: Session, row: TaskRow, device: Device, now: float) -> bool:
        """Whether a machine may do an audit."""
        return self.police is None or not row.about or auditors.may(session, self.police, row, device, now)

    def barred(self, session: Session, account: str) -> str:
        """Why an account gets no more work; nothing if it does."""
        return banning.reason(session, self.police, account)

    def is_on_probation(self, session: Session, account: str) -> bool:
        """Whether all that an account does is audited."""
        best = select(func.max(RecordRow.verified)).where(RecordRow.account == account)
        return self.police is not None and (session.scalar(best) or 0) < self.police.audit.first

    def _look(self, here: "Coordinator", number: str) -> Seen:
        """Files are looked at outside of the transaction."""
        with here.database.reading() as session:
            submission = session.get_one(SubmissionRow, number)
            lease = session.get_one(LeaseRow, submission.lease)
            row = session.get_one(TaskRow, submission.task)
            rivals = self._rivals(session, row)
            device = session.get_one(Device, submission.device)
        unit, result = Unit.model_validate(lease.unit), Result.model_validate(submission.result)
        if unit.role == "audit":
            return Seen(report=comparing.report(here.artifacts, result))
        if submission.state == "received":
            findings = admitting.findings(here.artifacts, unit, result, strict=self.police is not None)
            elapsed = submission.created - lease.created
            speed = device.speed or float(device.capabilities.get("speed") or 0.0)
            findings |= admitting.speed(unit, elapsed, speed)
            return Seen(findings, self.tools.alike(here.artifacts, rivals))
        if unit.quorum > 1:
            return Seen(alike=self.tools.alike(here.artifacts, rivals))
        return Seen(canary=self._canary(here, submission, row), weighed=self._weighed(here, submission, row))

    def _rivals(self, session: Session, row: TaskRow) -> list[SubmissionRow]:
        """Results of the other copies of a unit, if several must agree."""
        if row.unit.get("quorum", 1) < 2:
            return []
        same = select(TaskRow.candidate).where(TaskRow.key == row.key, TaskRow.candidate != "")
        return list(session.scalars(select(SubmissionRow).where(SubmissionRow.id.in_(same))))

    def _weighed(self, here: "Coordinator", submission: SubmissionRow, row: TaskRow) -> Weighed | None:
        """What the beacon and the scales say of a segment of which nothing was drawn yet."""
        if self.police is None or row.role != "train" or submission.id != row.candidate:
            return None
        if "audit" in submission.facts or (drawn := cases.spoken(self.police, submission)) is None:
            return None
        return weighing.look(here, self.scales, submission, row, drawn)

    def _canary(self, here: "Coordinator", submission: SubmissionRow, row: TaskRow) -> Canary:
        """A state that is known to be bad, if the next auditor is to be tried with one."""
        if self.police is None or "audit" not in submission.facts or submission.facts.get("final"):
            return None
        with here.database.reading() as session:
            case = Case(here, self.police, session, submission, row)
            question = audits.tried_next(case)
        return None if question is None else self.tools.spoilt(here.artifacts, question)

    def _decide(self, here: "Coordinator", session: Session, submission: SubmissionRow, seen: Seen) -> bool:
        """Whether the run's files have changed."""
        row = session.get_one(TaskRow, submission.task)
        if submission.state not in WAITING:
            case = self._case(here, session, submission, row)
            return case is not None and audits.consider(case, {}, seen.canary, seen.weighed)
        if submission.id != row.candidate:
            self._second(here, session, submission, row)
            return False
        if seen.findings.faults:
            reason = "; ".join(f"{name}: {sentence}" for name, sentence in seen.findings.faults.items())
            reject(here, session, submission, row, reason[:500])
            return False
        unit = Unit.model_validate(row.unit)
        if self.police is not None and unit.role == "audit":
            about = session.get_one(SubmissionRow, row.about)
            task = session.get_one(TaskRow, about.task)
            return audits.take(Case(here, self.police, session, about, task), submission, row, seen.report)
        if unit.quorum > 1:
            return self._quorum(here, session, row, unit, seen.alike)
        case = self._case(here, session, submission, row)
        if case is not None:
            return audits.consider(case, seen.findings.doubts, seen.canary, seen.weighed)
        accept(here, session, submission, row, canonical=True)
        return True

    def _case(
        self, here: "Coordinator", session: Session, submission: SubmissionRow, row: TaskRow
    ) -> Case | None:
        """A training that is audited; None for anything else."""
        if self.police is None or row.role != "train":
            return None
        return Case(here, self.police, session, submission, row)

    def _second(self, here: "Coordinator", session: Session, submission: SubmissionRow, row: TaskRow) -> None:
        """A result that came after another one: credited as far as it was told of before."""
        if row.state == undoing.VOID or session.get_one(LeaseRow, submission.lease).digest != row.digest:
            decide(here, session, submission, "rejected", "what it was built on turned out to be false")
            return
        if row.role == "audit":
            decide(here, session, submission, "duplicate", "another auditor was first")
            return
        same = select(TaskRow.id).where(TaskRow.key == row.key)
        first = session.scalars(
            select(SubmissionRow).where(SubmissionRow.task.in_(same), SubmissionRow.canonical)
        ).first()
        if first is None or first.state in WAITING:
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

    def _quorum(
        self,
        here: "Coordinator",
        session: Session,
        row: TaskRow,
        unit: Unit,
        alike: frozenset[frozenset[str]],
    ) -> bool:
        """Of copies of different accounts so many must be alike; who made another one is not paid."""
        tasks = list(session.scalars(select(TaskRow).where(TaskRow.key == row.key).order_by(TaskRow.copy)))
        if any(task.state in leasing.DONE for task in tasks):
            return False
        handed = [session.get_one(SubmissionRow, task.candidate) for task in tasks if task.candidate]
        handed.sort(key=lambda one: one.number)
        for one in handed:
            one.state = "checked"
        copies = [quorum.Copy(one.account, one.content) for one in handed]
        names = {id(copy): one.id for copy, one in zip(copies, handed, strict=True)}
        agreement = quorum.decide(
            copies, lambda a, b: frozenset((names[id(a)], names[id(b)])) in alike, unit.quorum, MOST_COPIES
        )
        if agreement.canonical is None:
            if agreement.hopeless:
                self._set_aside(here, session, tasks, handed)
            elif all(task.candidate for task in tasks):
                add_copy(session, tasks, here.clock.date())
                happened(session, here.clock.date(), "quorum_disagrees", task=row.name, copies=len(tasks))
            return False
        by_candidate = {task.candidate: task for task in tasks if task.candidate}
        for number, one in enumerate(handed):
            if number in agreement.agreeing:
                canonical = number == agreement.canonical
                accept(here, session, one, by_candidate[one.id], canonical=canonical, check="quorum")
            else:
                reason = "others who did the same came to another result"
                reject(here, session, one, by_candidate[one.id], reason, blame=False)
                by_candidate[one.id].state = "final"
        for task in tasks:
            if not task.candidate and task.state not in leasing.DONE:
                task.state = "final"  # nobody needs it any more
        return True

    def _set_aside(
        self, here: "Coordinator", session: Session, tasks: list[TaskRow], handed: list[SubmissionRow]
    ) -> None:
        """Everybody comes to something else: it is the unit's own fault."""
        kinds = {bands.name_of(Result.model_validate(one.result).numerics) for one in handed}
        reason = f"{len(tasks)} machines came to no agreement; they compute by {'; '.join(sorted(kinds))}"[
            :500
        ]
        for task in tasks:
            task.state = "quarantined"
        happened(session, here.clock.date(), "unit_quarantined", task=tasks[0].name, reason=reason)
        facts = {"unit": tasks[0].name, "reason": reason}
        here.book.note(session, "quarantine", facts, here.clock.date())


def advance(here: "Coordinator") -> None:
    """Open a task for every unit that can be worked on now; asked twice, nothing more happens."""
    while True:
        with here.database.reading() as session:
            version, table = session.get(Setting, TABLE), table_of(session)
            waiting = _unsettled(here, session)
        finished = here.plan.finished(table)
        units = [] if finished else here.plan.ready(table)
        here.done = finished and not waiting
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


def _unsettled(here: "Coordinator", session: Session) -> int:
    """What could still be taken out of the run: a model is made of what is final alone."""
    if here.judge.police is not None:
        return cases.unsettled(session)
    waiting = select(func.count()).where(SubmissionRow.state.in_(WAITING), SubmissionRow.canonical)
    return int(session.scalar(waiting) or 0)


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
    for row in known:  # a unit that nobody has begun may have other inputs by now, or have some again
        begun = row.state != undoing.VOID and (row.state != "open" or row.fence > 0)
        if row.state == undoing.VOID or (row.digest != unit.digest and not begun):
            row.describe(unit)
            row.state, row.candidate = "open", ""


def new_row(unit: Unit, key: str, copy: int, now: float) -> TaskRow:
    """A task that nobody has begun."""
    row = TaskRow(key=key, copy=copy, state="open", failed=[], created=now)
    row.describe(unit)
    return row


def add_copy(session: Session, copies: list[TaskRow], now: float) -> None:
    """One more opinion."""
    unit = Unit.model_validate(copies[0].unit)
    session.add(new_row(unit, copies[0].key, max(copy.copy for copy in copies) + 1, now))

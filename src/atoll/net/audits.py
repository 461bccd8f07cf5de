"""Training looked at again: drawn by the beacon after its commitment, replayed and settled by others.

A segment that passed admission is built on at once and paid once it is settled. Two audits may be owed: one
before it is accepted, as the policy draws it, and one before it is final, so that every segment of a model
was looked at. What is found false is taken out of the run with all that was built on it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from atoll.net import banning, deciding, leasing, tracing, undoing, weighing
from atoll.net.auditors import Canary, ask, is_canary_next, question
from atoll.net.cases import Case, challenge, draw, record_row
from atoll.net.policing import Police
from atoll.net.protocol import Result, Unit
from atoll.net.tables import RecordRow, SubmissionRow, TaskRow, happened
from atoll.net.verification import asking, bands, bisect, policy
from atoll.net.verification.comparison import Report
from atoll.net.weighing import Weighed

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator

OPINION: dict[policy.Judgement, str] = {"agrees": "pass", "differs": "fail", "inconclusive": "inconclusive"}
AGAIN = 3
"""Times that all of a segment is asked for, if an auditor accuses it each time and two others do not."""


def consider(
    case: Case, doubts: Mapping[str, str], canary: Canary = "unmade", weighed: Weighed | None = None
) -> bool:
    """Whatever can be done for a segment now; whether the run may have come further.

    `weighed` is what the beacon and the scales say of it; nothing is drawn before they have.
    """
    submission, changed = case.submission, False
    if submission.state == "rejected" or case.row.candidate != submission.id:
        return False
    if "before" not in submission.facts:
        case.note(doubts=dict(doubts))
        deciding.verdict(
            case.here, case.session, submission, "admission", "pass", evidence={"doubts": doubts}
        )
        deciding.provisional(case.here, case.session, submission, case.row)
        changed = True
    if "audit" not in submission.facts:
        if weighed is None:
            return changed
        if weighed.findings.faults:
            return _unfit(case, weighed)
        _note(case, weighed)
        draw(case, weighed.drawn, weighed.findings.doubts)
    if submission.state == "checked":
        return _accepting(case, canary) or changed
    return _releasing(case, canary) or changed


def _note(case: Case, weighed: Weighed) -> None:
    """What the scales said, for the log and for whoever is weighed next."""
    if weighed.facts is None:
        return
    sure = weighed.facts.get("gate") is not None and not weighed.findings.doubts
    outcome = "pass" if sure else "inconclusive"
    deciding.verdict(case.here, case.session, case.submission, "gate", outcome, evidence=weighed.evidence)
    case.note(**weighing.kept(weighed))


def _unfit(case: Case, weighed: Weighed) -> bool:
    """Numbers that nobody can build on: out of the run, and the unit is done again; nobody is punished."""
    reason = "; ".join(f"{name}: {sentence}" for name, sentence in weighed.findings.faults.items())
    deciding.verdict(case.here, case.session, case.submission, "admission", "fail", evidence=weighed.evidence)
    undoing.undo(case.here, case.session, case.submission, case.row, reason[:400], blame=True)
    return True


def tried_next(case: Case) -> Unit | None:
    """What the next auditor is asked, if that one is to be tried with a state that is known to be bad."""
    key = f"{case.phase}|{case.submission.id}"
    copies = len(case.session.scalars(select(TaskRow.id).where(TaskRow.key == key)).all())
    if not is_canary_next(case.police, case.submission, copies, case.awake()):
        return None
    return question(case.submission, case.unit)


def judged(police: Police, report: Report, worker: Result, auditor: Result) -> policy.Judgement:
    """What an auditor's report says of an interval: bits within a class, else the band between two."""
    same, band = worker.numerics == auditor.numerics, police.band(worker.numerics, auditor.numerics)
    if band is None and same:
        band = bands.rounding(report.comparison)
    return bands.judge(report.comparison, band, same_class=same)


def take(case: Case, audit: SubmissionRow, task: TaskRow, report: Report | None) -> bool:
    """An auditor's result; whether the run's files have changed. `case` is the segment that it is about."""
    here, session = case.here, case.session
    if audit.state == "checked":  # its verdict is there, and waits for others
        return False
    if any(row.about == audit.id for row in deciding.verdicts(session, case.submission.id)):
        audit.state = "checked"  # it was told before the database was made again
        task.task = leasing.judge(task.task, audit.id, "checked", "", here.terms)
        return consider(case, {})
    unit, result = Unit.model_validate(task.unit), Result.model_validate(audit.result)
    given = next(file.sha256 for file in unit.inputs if file.path == asking.COMMITTED)
    if report is None or report.committed != given:
        deciding.reject(here, session, audit, task, "its report is none, or of another state than was given")
        return False
    judgement = judged(case.police, report, case.result, result)
    if task.digest in case.submission.facts.get("canaries", ()):
        _canary(case, audit, task, judgement)
        return consider(case, {})
    if case.submission.state == "rejected" or case.submission.facts.get("final"):
        deciding.accept(here, session, audit, task, canonical=False, check="replay")
        return False
    audit.state = "checked"
    task.task = leasing.judge(task.task, audit.id, "checked", "", here.terms)
    evidence = _evidence(case, unit, result, report, judgement)
    if judgement == "agrees" and report.comparison.equal and evidence["same_class"]:
        evidence |= {"traced": tracing.is_traced(case.submission, case.unit, audit, unit)}
        evidence |= {"way": tracing.way_of(audit)}
    lost = evidence.get("traced") is False
    deciding.verdict(
        here, session, case.submission, "replay", "inconclusive" if lost else OPINION[judgement],
        by=audit.account, evidence={"audit": audit.id, **evidence}, phase=case.phase, about=audit.id,
    )  # fmt: skip
    if judgement == "differs" and (unit.first, unit.last) == (case.unit.first, case.unit.last):
        _narrow(case, result)
    return consider(case, {})


def _evidence(
    case: Case, unit: Unit, result: Result, report: Report, judgement: policy.Judgement
) -> dict[str, Any]:
    """What anybody needs to replay an interval, and what came of it here."""
    comparison = report.comparison
    return {
        "first": unit.first,
        "last": unit.last,
        "unit": unit.digest,
        "committed": report.committed,
        "replayed": report.replayed,
        "judgement": judgement,
        "relative": comparison.relative,
        "cosine": comparison.cosine,
        "numerics": bands.name_of(result.numerics),
        "report": next(file.sha256 for file in result.outputs if file.path == asking.REPORT),
        "same_class": result.numerics == case.result.numerics,
    }


def _narrow(case: Case, auditor: Result) -> None:
    """After a replay of all of a segment: the one interval in which two chains part is asked for next."""
    try:
        dispute = bisect.parting(case.result.chain, auditor.chain)
    except bisect.NoDispute:
        return
    case.change(interval=dispute.low, narrowed=True, since=case.here.clock.date())
    challenge(case)


def _canary(case: Case, audit: SubmissionRow, task: TaskRow, judgement: policy.Judgement) -> None:
    """A unit that was known to be bad: who finds it good did not look."""
    here, session = case.here, case.session
    if judgement != "agrees":
        deciding.verdict(here, session, audit, "canary", "pass")
        deciding.accept(here, session, audit, task, canonical=False)
        return
    deciding.verdict(here, session, audit, "canary", "fail", hard=True, evidence={"unit": task.digest})
    _convict(here, session, audit, deciding.AUDITS)
    deciding.reject(here, session, audit, task, "a unit that was known to be bad was found good", blame=False)
    task.state = "final"


def settled(case: Case) -> policy.Outcome:
    """What auditors have said so far, of the audit that is under way."""
    rows = deciding.verdicts(case.session, case.submission.id, case.phase)
    opinions = [
        policy.Verdict(row.by, row.evidence["judgement"], bool(row.evidence.get("same_class")))
        for row in tracing.counted(rows)
    ]
    again = case.audit["repeated"] or any(map(tracing.is_lost, rows))
    outcome = policy.settle(opinions, repeated=again)
    if again and outcome.state == "pending" and not case.left():
        return policy.settle(opinions)  # nobody is there who could be asked once more, unasked
    return outcome


def _accepting(case: Case, canary: Canary) -> bool:
    """Before a segment is paid: the audit that was drawn, if one was."""
    if case.audit["due"]:
        outcome = settled(case)
        if outcome.state != "accepted":
            return _unsettled(case, outcome, canary)
        if not case.audit.get("passed"):
            _pay_auditors(case, outcome)
            record_row(case.session, case.submission.account, case.result.numerics).verified += 1
            case.change(passed=True)
    if _is_waiting_for_parents(case):
        return False
    deciding.accept(case.here, case.session, case.submission, case.row, canonical=True)
    return _releasing(case, canary)


def _is_waiting_for_parents(case: Case) -> bool:
    """Whether what a segment was built on is still looked at: it is settled first."""
    earlier = select(SubmissionRow).where(
        SubmissionRow.canonical,
        SubmissionRow.state == "checked",
        SubmissionRow.number < case.submission.number,
    )
    reads = undoing.reads(case.row)
    return any(undoing.outputs(one) & reads for one in case.session.scalars(earlier))


def _releasing(case: Case, canary: Canary) -> bool:
    """Before a segment is final: an audit of an interval, or of all of it, if there was none yet."""
    if case.submission.facts.get("final"):
        return False
    if case.audit["phase"] == "accept":
        if case.audit["owed"] == "interval" or _replayed_whole(case):
            _finish(case)
            return True
        case.change(phase="release", repeated=False, since=case.here.clock.date())
        challenge(case)
    outcome = settled(case)
    if outcome.state != "accepted":
        return _unsettled(case, outcome, canary)
    _pay_auditors(case, outcome)
    if case.audit["owed"] == "whole" and case.audit.get("narrowed") and case.audit.get("again", 0) < AGAIN:
        case.change(narrowed=False, again=case.audit.get("again", 0) + 1)  # a false alarm: all of it again
        return _releasing(case, canary)
    record_row(case.session, case.submission.account, case.result.numerics).verified += 1
    _finish(case)
    return True


def _replayed_whole(case: Case) -> bool:
    """Whether an honest replay of all of it is there already."""
    unit = case.unit
    return any(
        row.verdict == "pass"
        and (row.evidence.get("first"), row.evidence.get("last")) == (unit.first, unit.last)
        for row in deciding.verdicts(case.session, case.submission.id, "accept")
    )


def _finish(case: Case) -> None:
    """Nobody disputes it any more."""
    case.note(final=True)
    case.row.task = leasing.finalise(case.row.task)
    deciding.decide(case.here, case.session, case.submission, "final", "")


def _unsettled(case: Case, outcome: policy.Outcome, canary: Canary) -> bool:
    """An audit that has not passed: somebody else is asked, or the work is refused."""
    if outcome.state == "pending":
        ask(case, canary)
        return False
    return _refuse(case, outcome)


def _refuse(case: Case, outcome: policy.Outcome) -> bool:
    """What auditors do not find again is out of the run; if they agree on that, escrow is forfeited."""
    here, session, submission = case.here, case.session, case.submission
    hard = outcome.state == "rejected"
    grounds = [row.statement for row in deciding.verdicts(session, submission.id, case.phase)]
    if hard:
        deciding.verdict(
            here, session, submission, "replay", "fail", hard=True, evidence={"verdicts": grounds}
        )
        _convict(here, session, submission, case.unit.stage)
    _pay_auditors(case, outcome)
    undoing.undo(here, session, submission, case.row, f"replay: {outcome.reason}", blame=not hard)
    if hard:
        _doubt(case)
    return True


def _convict(here: "Coordinator", session: Session, submission: SubmissionRow, lineage: str) -> None:
    """A hard failure: the escrow of that lineage goes back, and the account begins anew everywhere."""
    now, account = here.clock.date(), submission.account
    record_row(session, account, Result.model_validate(submission.result).numerics).hard += 1
    for row in session.scalars(select(RecordRow).where(RecordRow.account == account)):
        row.verified = 0
    event = f"forfeit {submission.id}"
    here.book.forfeit(session, event, account, lineage, submission.id, now)
    happened(session, now, "escrow_forfeited", account=account, lineage=lineage, submission=submission.id)
    banning.bar(here, session, account)


def _doubt(case: Case) -> None:
    """All of an account's work that the run goes on from is replayed as a whole, once it was found out."""
    mine = select(SubmissionRow).where(
        SubmissionRow.account == case.submission.account, SubmissionRow.canonical
    )
    for other in case.session.scalars(mine):
        if "audit" in other.facts and other.facts["audit"]["owed"] != "whole":
            task = case.session.get_one(TaskRow, other.task)
            again = Case(case.here, case.police, case.session, other, task)
            again.note(final=False)
            again.change(owed="whole", repeated=False, narrowed=False, again=again.audit.get("again", 0) + 1)
            if other.state == "accepted":
                again.change(phase="release", since=case.here.clock.date())
                task.state = "accepted"


def _idle(case: Case, audit: SubmissionRow, task: TaskRow, *, proven: bool) -> None:
    """Who cannot tell by which way it came to a state is not paid; if others could, it has lied."""
    here, session = case.here, case.session
    if proven:
        evidence = {"unit": task.digest, "traces": audit.facts.get(tracing.KNOWN, [])}
        deciding.verdict(here, session, audit, "trace", "fail", hard=True, evidence=evidence)
        _convict(here, session, audit, deciding.AUDITS)
    reason = "its losses on the way are not those of the steps that it says it has replayed"
    deciding.reject(here, session, audit, task, reason, blame=False)
    task.state = "final"


def _pay_auditors(case: Case, outcome: policy.Outcome) -> None:
    """Who said what the others did not is not paid, and nothing else; all others did their work."""
    rows = deciding.verdicts(case.session, case.submission.id, case.phase)
    counted = tracing.counted(rows)
    for row in rows:
        audit = case.session.get(SubmissionRow, row.about)
        if audit is None or audit.state != "checked":
            continue
        task = case.session.get_one(TaskRow, audit.task)
        if row not in counted:
            _idle(case, audit, task, proven=tracing.is_idle(row, rows))
        elif row.by in outcome.contradicted:
            deciding.reject(
                case.here,
                case.session,
                audit,
                task,
                "others who replayed it came to another result",
                blame=False,
            )
            task.state = "final"
        else:
            deciding.accept(case.here, case.session, audit, task, canonical=False, check="replay")

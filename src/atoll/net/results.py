"""Results as they come in: only what the unit may make, only what is here; each has a receipt for ever."""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from atoll.errors import AtollError
from atoll.net import auditors, leasing, log, tracing, vouching
from atoll.net.artifacts import Artifacts
from atoll.net.planning import Book, Plan
from atoll.net.protocol import File, Micro, Receipt, Result, Shown, Submission, Unit, digest_of
from atoll.net.statements import Signer
from atoll.net.tables import BlobRow, LeaseRow, SubmissionRow, TaskRow
from atoll.net.verification.asking import state_name

LONG = 100
"""Files or links of a result that the log lists; a longer list is a file, of which it has the digest."""


class NotYours(AtollError):  # noqa: N818 - a state
    """There is no such lease or submission, or it is another's: nobody is told which."""


def content_of(result: Result) -> str:
    """What two machines that did the same unit have in common: files but those that tell of time."""
    files = sorted((file.path, file.sha256) for file in result.outputs if not file.path.endswith(".jsonl"))
    return digest_of([files, sorted(result.removed), list(result.chain)])


def aside(artifacts: Artifacts, result: Result) -> dict[str, str]:
    """Lists that are too long for the log as files of their own: their digests by what they list."""
    lists = result.model_dump(mode="json", include={"outputs", "removed", "chain"})
    return {
        name: artifacts.write(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())
        for name, values in lists.items()
        if len(values) > LONG
    }


def check_files(session: Session, plan: Plan, unit: Unit, files: Iterable[File]) -> None:
    """What a unit may not touch, or what is not here, is no result."""
    for file in files:
        check_path(plan, unit, file.path)
        blob = session.get(BlobRow, file.sha256)
        if blob is None or blob.size != file.size:
            raise leasing.LeaseError("missing", f"{file.path} is not here; upload it first")


def check_links(unit: Unit, micro: Micro) -> None:
    """A state on the way has a hash for every point so far: whoever goes on from it must have them."""
    if not unit.every:
        return
    count, beyond = divmod(micro.step - unit.first, unit.every)
    ends = beyond or (micro.chain and micro.chain[-1] in {file.sha256 for file in micro.files})
    if len(micro.chain) != count + 1 or not ends or not all(len(link) == 64 for link in micro.chain):
        raise leasing.LeaseError(
            "chain", f"{unit.name} has {count + 1} hashes of states at step {micro.step}"
        )


def check_path(plan: Plan, unit: Unit, path: str) -> None:
    """Whether a unit may make, replace or remove a file."""
    if not plan.allows(unit, path):
        raise leasing.LeaseError("path", f"{unit.name} has no business with {path}")


def take(
    session: Session,
    plan: Plan,
    book: Book,
    lease: LeaseRow,
    row: TaskRow,
    message: Submission,
    number: str,
    now: float,
    long: dict[str, str],
    signed: Any = None,
) -> None:
    """Write a result down; whether it is right is another question."""
    result = message.result
    unit = Unit.model_validate(lease.unit)
    if result.unit != lease.digest:
        raise leasing.LeaseError("unit", "the result is of another unit than the lease")
    check_files(session, plan, unit, result.outputs)
    for path in result.removed:
        check_path(plan, unit, path)
    late = lease.fence != row.fence or row.state not in ("leased", "suspect")
    row.task, _ = leasing.submit(row.task, lease.fence, number)
    lease.state = "submitted"
    last = session.scalar(select(func.max(SubmissionRow.number))) or 0
    submission = SubmissionRow(
        id=number,
        number=last + 1,
        lease=lease.id,
        task=row.id,
        account=lease.account,
        device=lease.device,
        result=result.model_dump(mode="json"),
        digest=result.digest,
        content=content_of(result),
        state="received",
        late=late,
        created=now,
        facts=tracing.kept(unit, message.traces),
    )
    session.add(submission)
    session.flush()
    submission.statement = book.note(
        session, "result", _facts(submission, lease, row, result) | long | {"signed": signed}, now
    )


def _facts(submission: SubmissionRow, lease: LeaseRow, row: TaskRow, result: Result) -> dict[str, object]:
    return {
        "submission": submission.id,
        "lease": lease.id,
        "unit": row.name,
        "fence": lease.fence,
        "account": lease.account,
        "device": lease.device,
        "digest": lease.digest,
        "outputs": [file.model_dump(mode="json") for file in result.outputs[:LONG]],
        "removed": list(result.removed[:LONG]),
        "chain": list(result.chain[:LONG]),
        "numerics": result.numerics.model_dump(mode="json"),
        "steps": result.steps,
        "seconds": result.seconds,
        "late": submission.late,
        "traces": tracing.digest(submission.facts),
    }


def show(session: Session, book: Book, account: str, number: str, message: Shown, now: float) -> None:
    """Take states that were asked for, if they are those that were committed to."""
    row = session.get(SubmissionRow, number)
    if row is None or row.account != account:
        raise NotYours("there is no such submission of yours")
    unit = Unit.model_validate(session.get_one(LeaseRow, row.lease).unit)
    chain, shown = Result.model_validate(row.result).chain, dict(row.facts.get("shown", {}))
    for file in message.files:
        if file.model_dump(mode="json") in shown.values():
            continue  # who did not hear the answer says it again
        steps = [step for step in auditors.wanted(row, unit) if file.path.endswith(f"/{state_name(step)}")]
        if not steps:
            raise leasing.LeaseError("step", f"nobody has asked for {file.path}")
        if chain[(steps[0] - unit.first) // unit.every] != file.sha256:
            raise leasing.LeaseError("chain", f"{file.path} is not the state that was committed to")
        blob = session.get(BlobRow, file.sha256)
        if blob is None or blob.size != file.size:
            raise leasing.LeaseError("missing", f"{file.path} is not here; upload it first")
        shown[str(steps[0])] = file.model_dump(mode="json")
        facts = {"lease": row.lease, "unit": unit.name, "step": steps[0], "head": file.sha256}
        fence = session.get_one(LeaseRow, row.lease).fence
        book.note(session, "commitment", {**facts, "fence": fence, "file": shown[str(steps[0])]}, now)
    row.facts = {**row.facts, "shown": shown}


def receipt(session: Session, signer: Signer | None, number: str, url: str) -> Receipt:
    """What has become of a result."""
    row = session.get(SubmissionRow, number)
    if row is None:
        raise NotYours("there is no such submission")
    lease = session.get_one(LeaseRow, row.lease)
    made = Receipt(
        submission=row.id,
        lease=row.lease,
        unit=lease.digest,
        result=row.digest,
        state=row.state,
        reason=row.reason,
        price=row.price,
        late=row.late,
        canonical=row.canonical,
        time=row.created,
        url=f"{url}/submissions/{row.id}",
        statement=row.statement,
        wanted=auditors.wanted(row, Unit.model_validate(lease.unit)),
        final="audit" not in row.facts or bool(row.facts.get("final")),
    )
    if signer is None or row.statement is None:
        return made
    promise = log.receipt(session, row.statement, signer, row.created)  # the same however often one asks
    return vouching.signed(made.model_copy(update={"promise": promise.decode()}), signer)

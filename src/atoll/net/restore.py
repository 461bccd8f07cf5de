"""A coordinator's database made again from log and artifacts alone: after a loss, or elsewhere as a fork.

What the log does not say is not needed: who was holding a lease may come back with it, states on the way are
made again, nonces have expired. Whoever has another key than the old coordinator says so in the log.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from atoll.config import validate
from atoll.errors import ConfigError, CorruptError
from atoll.net import (
    facts,
    filing,
    history,
    judging,
    keys,
    leasing,
    ledger,
    lineage,
    log,
    policing,
    recalling,
    results,
    statements,
)
from atoll.net.artifacts import Artifacts
from atoll.net.crash import crash_point
from atoll.net.database import Database
from atoll.net.history import History
from atoll.net.host import FOLDER, Choices
from atoll.net.migrating import migrate
from atoll.net.protocol import Delegation, File, Manifest, Numerics, Result, Unit
from atoll.net.publishing import located
from atoll.net.rules import Known
from atoll.net.sources import Source, open_source
from atoll.net.statements import Signer
from atoll.net.tables import Account, Device, LeaseRow, Setting, SubmissionRow, TaskRow
from atoll.net.tree import Frontier, leaf_hash
from atoll.runs import RESOLVED, Run, runs_folder, safe_name
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.store import open_store

STATES = {"final": "accepted"}
"""Of submissions, by what was decided last."""
NEEDED = ("checkpoint", "entries", "tree", "manifest", "statements")
"""Checks without which nothing can be built on a history."""


def read(source: Source, log_key: str | None = None) -> History:
    """A history that one can go on from; CorruptError with the first reason why not."""
    past = history.read(source, log_key)
    for name in NEEDED:
        for fault in past.faults.get(name, ()):
            raise CorruptError(
                f"nothing can go on from {source.address}: {fault}; run `atoll audit` for more"
            )
    return past


def manifest_of(past: History) -> Manifest:
    """What the run is."""
    return Manifest.model_validate(dict(past.manifest))


def take_over(address: str, choices: Choices, clock: Clock = CLOCK) -> Run:
    """The run whose history is at an address, here, ready to be hosted; taken over before, it goes on.

    Keys that lie in the run's folder already are used: with the old coordinator's it is no fork.
    """
    source = open_source(address)
    past = read(source)
    manifest = manifest_of(past)
    config = validate(dict(manifest.resolved), address)
    folder = runs_folder() / config.name
    place = folder / FOLDER
    if (folder / RESOLVED).is_file() and not place.is_dir():
        raise ConfigError(
            f"{folder} is a run of this name that was made here; set ATOLL_RUNS to another place"
        )
    for file in manifest.inputs:
        if not source.save(file.sha256, folder / safe_name(file.path)):
            raise CorruptError(f"{file.path} ({file.sha256:.12}) cannot be had; look for a mirror of it")
    run = Run.create(located(config, folder))
    place.mkdir(parents=True, exist_ok=True)
    database = Database(choices.database or str(place / "coordinator.db"))
    try:
        migrate(database)
        with database.reading() as session:
            if log.size(session):
                return run
        store = open_store(choices.store or str((place / "store").resolve()))
        artifacts = Artifacts(store, place / "scratch", database, clock=clock)
        signer = Signer(keys.read_or_make(place / "coordinator.key"), past.run)
        log_key = keys.public_hex(keys.read_or_make(place / "log.key"))
        rebuild(past, source, artifacts, signer, log_key, past.checkpoint.origin, clock.date())
    finally:
        database.close()
    return run


def rebuild(
    past: History, source: Source, artifacts: Artifacts, signer: Signer, log_key: str, origin: str, now: float
) -> int:
    """Fill an empty database from a history; how many entries its log has. All of it, or nothing.

    `signer` and `log_key` (public) are of who goes on; with others than the run's own it is a fork.
    """
    known = Known(past)
    table = lineage.files(known)
    _bring(source, artifacts, known, table)
    crash_point("restore.before-commit")
    with artifacts.database.writing() as session:
        if log.size(session):
            raise ConfigError("this database has a log already; go on with it, or give another --database")
        _log(session, past)
        _ledger(session, past)
        session.add(Setting(name="manifest", value={"text": manifest_of(past).model_dump_json()}))
        filing.add_files(session, table)
        _people(session, past)
        _work(session, known, now)
        recalling.recall(session, known)
        if signer.public != past.coordinator or log_key != past.manifest.get("log"):
            _fork(session, past, signer, log_key, origin, now)
        size = log.size(session)
    crash_point("restore.after-commit")
    _project(artifacts.database)
    return size


def _bring(source: Source, artifacts: Artifacts, known: Known, table: dict[str, File]) -> None:
    """Files of the run and of results that wait; older states too, if they are kept, for whoever audits."""
    files = {file.sha256: file for file in table.values()}
    older: dict[str, File] = {}
    for submission, (_, result) in known.results.items():
        listed = {} if isinstance(result.outputs, str) else {file.sha256: file for file in result.outputs}
        if submission not in known.decisions:
            files |= listed
        older |= listed
    shown = (one.file for _, one in known.history.of(facts.Commitment))
    older |= {file.sha256: file for file in shown if file is not None}
    with TemporaryDirectory(prefix="atoll-restore-", dir=artifacts.scratch) as folder:
        for sha256, file in {**older, **files}.items():
            there = _copied(source, artifacts, sha256, Path(folder), file.size)
            if not there and sha256 in files:
                raise CorruptError(
                    f"{file.path} ({sha256:.12}) is missing or damaged; look for a mirror of it"
                )
        for sha256 in known.history.listed:
            if not _copied(source, artifacts, sha256, Path(folder)):
                raise CorruptError(f"a list of the log ({sha256:.12}) is missing; look for a mirror of it")


def _copied(source: Source, artifacts: Artifacts, sha256: str, folder: Path, size: int | None = None) -> bool:
    """Whether a file is here now, whole."""
    if artifacts.size(sha256) is not None:
        return True
    path = folder / sha256
    if not source.save(sha256, path) or size not in (None, path.stat().st_size):
        return False
    artifacts.add(path, sha256)
    path.unlink()
    return True


def _log(session: Session, past: History) -> None:
    for index, envelope in enumerate(past.envelopes):
        statement = statements.opened(envelope)
        leaf = leaf_hash(envelope)
        session.add(
            log.Entry(index=index, kind=statement.kind, leaf=leaf, envelope=envelope, at=statement.at)
        )
    session.flush()


def _ledger(session: Session, past: History) -> None:
    for entry, event in past.of(facts.Credit):
        entries = [ledger.Entry(*one) for one in event.entries]
        ledger.record(session, entry.index, event.event, entries, event.reason, entry.at, event.submission)


def _people(session: Session, past: History) -> None:
    for entry, one in past.of(facts.Account):
        delegation = Delegation.model_validate(one.delegation or {})
        if session.get(Account, one.account) is None:
            number = (session.scalar(select(func.max(Account.number))) or 0) + 1
            session.add(
                Account(
                    id=one.account, public=delegation.account, nickname="", created=entry.at, number=number
                )
            )
            session.flush()
        session.merge(
            Device(
                id=one.device,
                account=one.account,
                public=delegation.device,
                expires=one.expires,
                created=entry.at,
                seen=entry.at,
                capabilities={},
                speed=0.0,
            )
        )
    session.flush()


def _work(session: Session, known: Known, now: float) -> None:
    """Tasks with their fences, leases, and results with what became of them."""
    tasks: dict[tuple[str, int], TaskRow] = {}
    for entry, lease, unit in _leases(known):
        key, copy = lease.key or judging.key_of(unit), lease.copy_ or 0
        for number in range(max(unit.quorum, copy + 1)):
            if (key, number) not in tasks:
                tasks[key, number] = judging.new_row(unit, key, number, entry.at)
                session.add(tasks[key, number])
        session.flush()
        row = tasks[key, copy]
        row.unit, row.digest, row.name = unit.model_dump(mode="json"), unit.digest, unit.name
        row.fence, row.holder, row.about = lease.fence, lease.lease, lease.about
        row.state, row.heard, row.deadline = "orphaned", now, now
        session.add(
            LeaseRow(
                id=lease.lease,
                task=row.id,
                account=lease.account,
                device=lease.device,
                fence=lease.fence,
                unit=row.unit,
                digest=row.digest,
                state="lost",
                created=entry.at,
                heard=now,
                deadline=now,
                expected=0.0,
                step=unit.first,
            )
        )
    session.flush()
    _submissions(session, known)
    _settle(session, known, tasks)


def _leases(known: Known) -> Iterator[tuple[history.Entry, facts.Lease, Unit]]:
    for entry, lease in known.history.of(facts.Lease):
        if lease.definition is not None:
            yield entry, lease, lease.definition


def _submissions(session: Session, known: Known) -> None:
    for number, (entry, one) in enumerate(known.results.values(), 1):
        lease = session.get(LeaseRow, one.lease)
        if lease is None or any(isinstance(part, str) for part in (one.outputs, one.removed, one.chain)):
            continue
        result = Result(
            unit=one.digest or lease.digest,
            outputs=one.outputs,
            removed=one.removed,
            chain=one.chain,
            numerics=Numerics.model_validate(one.numerics or {}),
            seconds=one.seconds,
            steps=one.steps,
        )
        decisions = known.decisions.get(one.submission, [])
        last = decisions[-1] if decisions else None
        lease.state = "submitted"
        row = SubmissionRow(
            id=one.submission,
            number=number,
            lease=lease.id,
            task=lease.task,
            account=one.account,
            device=one.device,
            result=result.model_dump(mode="json"),
            digest=result.digest,
            content=results.content_of(result),
            state="received" if last is None else STATES.get(last[1].state, last[1].state),
            reason="" if last is None else last[1].reason,
            price=0 if last is None else last[1].price,
            canonical=last is not None and last[1].state != "rejected" and last[1].canonical,
            decided=None if last is None else last[0].at,
            late=one.late,
            created=entry.at,
            statement=entry.index,
            facts={},
        )
        session.add(row)
    session.flush()


def _settle(session: Session, known: Known, tasks: dict[tuple[str, int], TaskRow]) -> None:
    """What each task has come to: accepted, waiting for a decision, or free for whoever asks."""
    by_id = {row.id: row for row in tasks.values()}
    for submission in known.results:
        row = session.get(SubmissionRow, submission)
        if row is None:
            continue
        task = by_id[row.task]
        if row.state == "accepted" and (row.canonical or task.state not in leasing.DONE):
            decisions = known.decisions[submission]
            task.state = "final" if decisions[-1][1].state == "final" else "accepted"
            task.candidate = row.id
        elif row.state == "received" and task.state not in leasing.DONE:
            task.state, task.candidate = "submitted", row.id
    for key in {name for (name, _), row in tasks.items() if row.state in leasing.DONE and not row.about}:
        for (name, _), other in tasks.items():
            if name == key and other.state in ("open", "orphaned"):
                other.state = "final"  # others have agreed; nobody needs it any more
    session.flush()


def _fork(session: Session, past: History, signer: Signer, log_key: str, origin: str, now: float) -> None:
    """Another coordinator goes on: it says so, and from what."""
    frontier = Frontier()
    for envelope in past.envelopes:
        frontier.append(leaf_hash(envelope))
    content: dict[str, Any] = {
        "coordinator": signer.public,
        "log": log_key,
        "origin": origin,
        "size": frontier.size,
    }
    manifest = manifest_of(past)
    drawn_by = manifest.policy.get("beacon")
    public = isinstance(drawn_by, dict) and drawn_by.get("url") is not None  # it goes on, whoever asks it
    if "audit" in manifest.policy and not public:
        period = policing.period_for(manifest.target_s)
        beacon = policing.own_beacon(signer.key, now, period, policing.ROUNDS)
        content["beacon"] = beacon.model_dump(mode="json")
        session.add(Setting(name=policing.BEACON, value=content["beacon"]))
    log.append(session, "fork", {**content, "root": frontier.root().hex()}, signer, now)


def _project(database: Database) -> None:
    count = 1
    while count:
        with database.writing() as session:
            count = ledger.project(session)
    with database.reading() as session:
        if not (state := ledger.reconcile(session)).holds:
            raise CorruptError(f"the ledger of the history does not balance: {state}; run `atoll audit`")

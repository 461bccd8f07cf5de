"""What a log tells of checks, put back into a database: draws, verdicts, records, what was replaced."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import Session

from atoll.net import facts, lineage
from atoll.net.protocol import File, Numerics
from atoll.net.rules import Known
from atoll.net.tables import RecordRow, SubmissionRow, VerdictRow
from atoll.net.verification.asking import COMMITTED


def recall(session: Session, known: Known) -> None:
    """All of it, for submissions that are in the database."""
    for number, notes in _notes(known).items():
        row = session.get(SubmissionRow, number)
        if row is not None:
            row.facts = {**row.facts, **notes}
    _verdicts(session, known)
    _records(session, known)
    session.flush()


def _notes(known: Known) -> dict[str, dict[str, Any]]:
    """What the coordinator remembers of a submission, by submission."""
    notes: dict[str, dict[str, Any]] = {number: {} for number in known.results}
    for number, before in _replaced(known):
        notes[number]["before"] = before
    values = {draw.submission: draw.value for _, draw in known.history.of(facts.Beacon)}
    for entry, asked in known.history.of(facts.Challenge):
        if asked.interval is not None and asked.submission in values:
            audit = asked.model_dump(exclude={"submission", "first", "last", "auditor"})
            notes[asked.submission]["audit"] = {**audit, "value": values[asked.submission], "since": entry.at}
    for number in known.results:
        if known.decisions.get(number) and known.decisions[number][-1][1].state == "final":
            notes[number]["final"] = True
        shown = dict(_shown(known, number))
        canaries = list(_canaries(known, number))
        notes[number] |= ({"shown": shown} if shown else {}) | ({"canaries": canaries} if canaries else {})
    return notes


def _replaced(known: Known) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was in the place of a result's files before it, of all that the run goes on from."""
    table: dict[str, File] = {file.path: file for file in lineage.beginning(known.history)}
    for _, result in lineage.ordered(known):
        if isinstance(result.outputs, str) or isinstance(result.removed, str):
            continue
        before: dict[str, Any] = {}
        for path in {*result.removed, *(file.path for file in result.outputs)}:
            file = table.get(path)
            before[path] = None if file is None else {"sha256": file.sha256, "size": file.size}
        for path in result.removed:
            table.pop(path, None)
        table.update({file.path: file for file in result.outputs})
        yield result.submission, before


def _shown(known: Known, number: str) -> Iterator[tuple[str, Any]]:
    """States that were shown after a result was handed in."""
    entry, result = known.results[number]
    for later, one in known.history.of(facts.Commitment):
        if one.lease == result.lease and later.index > entry.index and one.file is not None:
            yield str(one.step), one.file.model_dump(mode="json")


def _canaries(known: Known, number: str) -> Iterator[str]:
    """Audits of a submission in which another state was given than was committed to."""
    chain = known.results[number][1].chain
    for _, lease in known.leases.values():
        unit = lease.definition
        if lease.about == number and unit is not None:
            given = next((file.sha256 for file in unit.inputs if file.path == COMMITTED), None)
            if given is not None and not isinstance(chain, str) and given not in chain:
                yield unit.digest


def _verdicts(session: Session, known: Known) -> None:
    for entry, one in known.history.of(facts.Verdict):
        if session.get(SubmissionRow, one.submission) is not None:
            row = VerdictRow(
                submission=one.submission,
                check=one.check,
                verdict=one.verdict,
                hard=one.hard,
                by=one.by,
                phase=one.phase,
                about=one.about,
                evidence=one.evidence if isinstance(one.evidence, dict) else {},
                statement=entry.index,
                created=entry.at,
            )
            session.add(row)
    session.flush()


def _records(session: Session, known: Known) -> None:
    """Audits passed since the last hard failure, and hard failures, in the order of the log."""
    verified: Counter[tuple[str, str]] = Counter()
    hard: Counter[tuple[str, str]] = Counter()
    for entry in known.history.statements:
        one = entry.facts
        if isinstance(one, facts.Verdict) and one.hard and one.verdict == "fail":
            account, numerics = _whose(known, one.submission)
            hard[account, numerics] += 1
            for key in [key for key in verified if key[0] == account]:
                verified[key] = 0
        if isinstance(one, facts.Decision) and one.state in ("accepted", "final"):
            phase = {"accepted": "accept", "final": "release"}[one.state]
            passed = [
                verdict
                for place, verdict in known.verdicts[one.submission]
                if place.index < entry.index and verdict.phase.startswith(phase) and verdict.verdict == "pass"
            ]
            if passed:
                verified[_whose(known, one.submission)] += 1
    for account, numerics in {*verified, *hard}:
        key = (account, numerics)
        session.merge(RecordRow(account=account, numerics=numerics, verified=verified[key], hard=hard[key]))


def _whose(known: Known, submission: str) -> tuple[str, str]:
    result = known.results[submission][1]
    return result.account, Numerics.model_validate(result.numerics or {}).digest

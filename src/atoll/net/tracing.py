"""Who has really taken the steps: a hash of the losses of every interval, which no log ever shows.

Hashes of states are public, so that an auditor could repeat them without looking. The losses on the way are
known to whoever took the steps and to nobody else. A worker hands in a hash of them for every interval, a
trace; the coordinator keeps traces to itself, and the log has their digest alone. An auditor of the same
arithmetic that comes to the same state has come by the same losses, or it has not replayed anything.
"""

from collections.abc import Sequence
from typing import Any

from atoll.net.protocol import Unit, digest_of
from atoll.net.tables import SubmissionRow, VerdictRow

TRACES = "traces.json"
"""Beside a unit, as its chain: traces by the last step of their interval."""
KNOWN = "traces"
"""Where a submission has them, in what is remembered of it."""
MOST = 5000
"""Intervals of a unit with more of which it has none: a message with its chain beside them has an end."""
ENOUGH, AGAINST = 2, 3
"""Auditors by whose replays a worker's traces are known to be right, and by whose they are known to be false:
its own word counts as one."""


def ends_of(unit: Unit) -> list[int]:
    """The last steps of a unit's intervals."""
    return [*range(unit.first + unit.every, unit.last, unit.every), unit.last] if unit.every else []


def traces_of(unit: Unit, traces: dict[int, str]) -> tuple[str, ...]:
    """The trace of every interval; nothing for one that was not taken here from its beginning."""
    ends = ends_of(unit)
    known = tuple(traces.get(step, "") for step in ends) if len(ends) <= MOST else ()
    return known if any(known) else ()


def kept(unit: Unit, traces: Sequence[str]) -> dict[str, Any]:
    """What a submission remembers of them; nothing where they are not those of its intervals."""
    return {KNOWN: list(traces)} if traces and len(traces) == len(ends_of(unit)) else {}


def digest(facts: dict[str, Any]) -> str:
    """What the log says of them, so that they stand before anybody replays: nothing where there are none."""
    return digest_of(facts[KNOWN]) if KNOWN in facts else ""


def is_traced(work: SubmissionRow, unit: Unit, audit: SubmissionRow, asked: Unit) -> bool | None:
    """Whether an auditor has gone the way of the worker; None where one of them has not said which."""
    theirs = dict(zip(ends_of(unit), work.facts.get(KNOWN, ()), strict=False))
    own = dict(zip(ends_of(asked), audit.facts.get(KNOWN, ()), strict=False))
    if not any(theirs.get(step) for step in ends_of(asked)):
        return None
    return all(theirs[step] in ("", own.get(step, "")) for step in ends_of(asked))


def is_lost(row: VerdictRow) -> bool:
    """Whether an auditor says that it came to the same state, and not by which way."""
    return row.evidence.get("traced") is False


def way_of(audit: SubmissionRow) -> str:
    """A digest of an auditor's traces, which tells nobody what they are; nothing where it has none."""
    return digest(audit.facts)


def is_vouched(row: VerdictRow, rows: Sequence[VerdictRow]) -> bool:
    """Whether others have come the same way: then it is the worker who told of a false one."""
    way = row.evidence.get("way")
    return len({one.by for one in rows if is_lost(one) and way and one.evidence.get("way") == way}) >= AGAINST


def counted(rows: Sequence[VerdictRow]) -> list[VerdictRow]:
    """Verdicts that say something: not those of auditors who cannot tell the way."""
    return [row for row in rows if not is_lost(row) or is_vouched(row, rows)]


def is_idle(row: VerdictRow, rows: Sequence[VerdictRow]) -> bool:
    """Whether it is proven that an auditor did not replay: others did, and all came by the worker's way."""
    others = {one.by for one in rows if one.evidence.get("traced") and one.by != row.by}
    return is_lost(row) and not is_vouched(row, rows) and len(others) >= ENOUGH

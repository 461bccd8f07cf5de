"""Where a run's files come from, as its history tells: who made what, and what stands in the end."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import ValidationError

from atoll.net import facts
from atoll.net.history import Entry, History
from atoll.net.protocol import File
from atoll.net.verification.asking import COMMITTED

if TYPE_CHECKING:
    from atoll.net.rules import Known


def lineage(known: "Known") -> Iterator[str]:
    """A unit reads what the manifest or work that stands brought, and nothing that nobody made."""
    made = {file.sha256 for file in beginning(known.history)}
    by_place = sorted((entry.index, _digests(result)) for entry, result in known.results.values())
    by_place += [
        (entry.index, [one.file.sha256]) for entry, one in known.history.of(facts.Commitment) if one.file
    ]
    by_place.sort(key=lambda pair: pair[0])
    position = 0
    for entry, lease in known.history.of(facts.Lease):
        while position < len(by_place) and by_place[position][0] < entry.index:
            made.update(by_place[position][1])
            position += 1
        unit = lease.definition
        strange = [
            file.path
            for file in (unit.inputs if unit is not None else ())
            if file.sha256 not in made and file.path != COMMITTED  # a canary's is nobody's
        ]
        if strange:
            yield f"entry {entry.index}: {lease.unit} reads {strange[0]}, which nobody made"


def files(known: "Known") -> dict[str, File]:
    """The files of the run as they are now: what work that stands put there, in order."""
    table = {file.path: file for file in beginning(known.history)}
    for _, result in ordered(known):
        if isinstance(result.outputs, str) or isinstance(result.removed, str):
            continue
        for path in result.removed:
            table.pop(path, None)
        table.update({file.path: file for file in result.outputs})
    return table


def ordered(known: "Known") -> list[tuple[Entry, facts.Result]]:
    """Results that the run goes on from, in the order in which they were built on each other.

    What is handed in is built on at once, while it is still looked at: decisions may come in another order.
    """
    return sorted(known.standing(), key=lambda pair: pair[0].index)


def beginning(history: History) -> list[File]:
    """The files that a run begins with, as its manifest lists them."""
    inputs = history.manifest.get("inputs")
    try:
        return [File.model_validate(file) for file in inputs] if isinstance(inputs, list) else []
    except ValidationError:
        return []


def _digests(result: facts.Result) -> list[str]:
    return [] if isinstance(result.outputs, str) else [file.sha256 for file in result.outputs]

"""Who made a run on machines of their own, and how much of it was verified; signed by its coordinator."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from atoll.runs.files import read_json, write_json
from atoll.runs.parsing import VERSION, validated, versioned
from atoll.runs.records import Count, Frozen, Sha256

CONTRIBUTORS = "contributors.json"


class Contributor(Frozen):
    """One account: the hash of a public key, and nothing else of a person."""

    account: Sha256
    units: Count = 0
    """Results that were accepted."""
    audits: Count = 0
    """Of these, replays of others' work."""
    credit: Count = 0
    """Milli-credits for them, less what was forfeited."""
    stages: tuple[str, ...] = ()
    """What it trained or made, of what the run is made of."""


class Contributors(Frozen):
    """All of them."""

    version: Literal[1] = VERSION
    run: Sha256
    """The digest of the run's manifest."""
    coordinator: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The public key that the statement is signed by."""
    entries: Count
    """Of the log, when it was written."""
    people: tuple[Contributor, ...] = ()
    statement: str = Field("", max_length=1 << 20)
    """The same as an envelope (DSSE) with the coordinator's signature."""


def write_contributors(folder: Path, contributors: Contributors) -> None:
    """Beside the stages of a run, or in an exported folder."""
    write_json(folder / CONTRIBUTORS, contributors.model_dump(mode="json"))


def read_contributors(folder: Path) -> Contributors | None:
    """None for a run that was made in one place."""
    path = folder / CONTRIBUTORS
    if not path.is_file():
        return None
    return validated(Contributors, versioned(read_json(path), str(path)), str(path))

"""Parts that come and go: what a component says of itself, and which of them a run has."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from atoll.runs.files import read_json, write_json
from atoll.runs.parsing import VERSION, validated, versioned
from atoll.runs.records import Count, Frozen, NetworkContents, SamplesContents, Sha256

FOLDER = "components"
"""Where a run keeps what was added to it."""
MEMBERS = f"{FOLDER}/members.json"
ROWS = "router.safetensors"
"""Prototypes of a component's data: what routers need to know of it."""
DRAWN = "samples.safetensors"
"""Samples that a component drew itself, with their classes."""
SIGNATURE = "signature.json"
"""An envelope around the digests of all files, beside the record; see `atoll.credit.signature`."""


class Card(Frozen):
    """Whose a part is, and what may be done with it."""

    owner: str | None = Field(None, max_length=80)
    licence: str = Field("unknown", max_length=80)
    tags: tuple[str, ...] = Field((), max_length=32)
    access: tuple[str, ...] = Field((), max_length=256)
    """Users who alone may have it asked; everybody, if none is named."""
    about: str = Field("", max_length=2000)
    """What its data is, in words."""


class ComponentContents(NetworkContents):
    """An expert or adapter that somebody made on data of their own, to be added to a run."""

    STAGE = "component"
    name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,79}$")
    card: Card = Card()
    base: Sha256 | None = None
    """The sha256 of the weights that it began with; None if with nothing."""
    samples: SamplesContents
    """What stored values of its data mean; none of the data itself."""
    labels: tuple[Count, ...] | None = None
    """How many samples of each class it was trained on, where it is told classes."""
    prototypes: int = Field(ge=1, le=256)
    epsilon: float | None = Field(None, gt=0)
    """Differential privacy of the router rows."""
    delta: float | None = Field(None, gt=0)
    drawn: Count = 0
    """Samples that it drew itself, for calibration."""


class Member(Frozen):
    """A component of a run."""

    number: Count
    """Of the part: the run's own experts come first, and no number is given twice."""
    name: str
    digest: Sha256


class Refreshed(Frozen):
    """A router that has learnt parts that were added, from samples that they drew."""

    knows: tuple[Count, ...] = Field(min_length=1)
    """Numbers of the parts that it tells apart, in the order of its answers."""
    folder: str = Field(pattern=r"^router-[0-9a-f]{12}$")
    """Where it is, beside the parts."""
    digest: Sha256


class Members(Frozen):
    """Which parts a run has, besides and without those that its recipe trains."""

    version: Literal[1] = VERSION
    added: tuple[Member, ...] = ()
    dropped: tuple[Count, ...] = ()
    """Numbers of parts that serve no longer, added or own."""
    betas: tuple[Annotated[float, Field(gt=0, le=100)], ...] = Field((1.0,), min_length=1, max_length=1000)
    """Inverse temperatures of the routing between own and added parts, for equal parts of the time."""

    router: Refreshed | None = None
    """Who tells parts apart in place of the router that the recipe trains, where somebody has learnt more."""

    def known(self, own: int) -> tuple[int, ...]:
        """The parts that a learnt router tells apart; prototypes decide between them and the others."""
        return tuple(range(own)) if self.router is None else self.router.knows

    def count(self, own: int) -> int:
        """How many numbers have been given, with those of parts that are gone."""
        return max([own, *(member.number + 1 for member in self.added)])

    def serving(self, own: int) -> list[int]:
        """Parts that are there, by number."""
        there = [*range(own), *(member.number for member in self.added)]
        return [number for number in there if number not in self.dropped]

    @property
    def present(self) -> tuple[Member, ...]:
        """Components that were added and not dropped again."""
        return tuple(member for member in self.added if member.number not in self.dropped)


def read_members(folder: Path) -> Members:
    """The members of the run in this folder; the same for all runs that nothing was added to."""
    path = folder / MEMBERS
    if not path.is_file():
        return Members()
    return validated(Members, versioned(read_json(path), str(path)), str(path), "restore it from a backup")


def write_members(folder: Path, members: Members) -> None:
    """Say which parts there are, from now on: the one write that adds or drops."""
    write_json(folder / MEMBERS, members.model_dump(mode="json"))

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


Seen = Literal["held out", "trained on", "drawn by experts"]
"""What samples are on which a part is weighed; only of the first nobody has learnt."""


class Changed(Frozen):
    """How much a loss fell on some samples when a part came; negative where it rose."""

    fell: float
    error: float = Field(ge=0)
    loss: float = Field(ge=0)
    """What it was before."""
    samples: Count

    @property
    def words(self) -> str:
        """For people, as a share of the loss."""
        share = self.fell / self.loss if self.loss else 0.0
        return f"{share:+.1%} ± {1.96 * self.error / self.loss if self.loss else 0.0:.1%}"


class Weighed(Frozen):
    """What the gate found when a component was added: the run asked with and without it, in pairs."""

    seen: Seen
    """What the samples of the run's own parts are."""
    others: Changed
    worst: Count
    """The part at whose home most was lost."""
    most: Changed
    home: Changed | None = None
    """On samples of its own that nobody trained on, where somebody brought any."""
    whole: Changed | None = None
    """On all of them together, each part by its share: what the part is worth to the run."""
    against: str | None = Field(None, max_length=300)
    """Why it would have been refused, where it was added all the same."""


class Member(Frozen):
    """A component of a run."""

    number: Count
    """Of the part: the run's own experts come first, and no number is given twice."""
    name: str
    digest: Sha256
    weighed: Weighed | None = None
    """What was found when it was added; nothing is known of parts of earlier versions."""

    @property
    def mark(self) -> str:
        """How far its work was checked: nobody can replay a training on data that is elsewhere."""
        if self.weighed is None:
            return "not replayed, and never weighed"
        if self.weighed.against is not None:
            return f"not replayed, and added against the gate: {self.weighed.against}"
        data = "held-out data" if self.weighed.seen == "held out" else f"data {self.weighed.seen}"
        if self.weighed.home is None:
            return f"not replayed: admitted by the gate on {data}; what it is worth at home is not known"
        return f"not replayed: admitted by gate and credit on {data}"


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

"""How far honest replays of one interval lie apart, by numerics classes: measured, and kept in the manifest.

One class must be bit-equal; where it is not, a band of rounding is the limit of what may be drift. Between
classes the band is four times what was measured among trusted machines. A band so wide that false work would
fit into it is none: such classes do not audit each other.
"""

from collections.abc import Iterable, Sequence

from pydantic import Field

from atoll.config import Section
from atoll.net.protocol import Numerics
from atoll.net.verification.comparison import UNLIKE, Comparison
from atoll.net.verification.policy import Judgement

FACTOR = 4.0
"""The band over the largest honest difference that was measured: tails between precisions are heavy."""
DOUBTFUL = 2.0
"""Up to so many times the band nothing is concluded, and a second auditor is asked."""
WIDEST = 0.25
"""The relative difference of a usable band: half the steps are 0.6 apart, twice this is still below."""
SIZES = ("relative", "worst", "plain", "jump")
"""What is measured of a part of a state, beside its cosine."""
LEAST = 1e-5
"""Drift that is always granted: the rounding of float32, added up."""


class Limit(Section):
    """Of one part of a state."""

    relative: float = Field(ge=0)
    worst: float = Field(ge=0)
    """Of a single tensor."""
    plain: float = Field(ge=0)
    jump: float = Field(ge=0)
    cosine: float


ROUNDING = Limit(relative=LEAST, worst=1e-3, plain=2e-3, jump=2e-3, cosine=1 - LEAST)
"""Four times what float32 with sums in another order has shown; the nearest cheat is 700 times as far."""


class Band(Section):
    """How far two honest results of two numerics classes may be apart."""

    limits: dict[str, Limit]
    """By part of the state."""
    measured: int = Field(ge=1)
    """Intervals on which it stands."""

    @property
    def usable(self) -> bool:
        """Whether false work would be seen beside it."""
        weights = [self.limits[kind] for kind in ("model", "ema") if kind in self.limits]
        return all(limit.relative <= WIDEST for limit in weights)


class Bands(Section):
    """The bands of a run; part of the manifest."""

    pairs: dict[str, Band] = Field(default_factory=dict)
    """By the names of two classes."""

    def between(self, one: str, other: str) -> Band | None:
        """The band between two classes, if it was measured and can be used."""
        band = self.pairs.get(pair(one, other))
        return band if band is not None and band.usable else None


def name_of(numerics: Numerics) -> str:
    """What a numerics class is called: all that may decide bits."""
    words = (
        numerics.device,
        numerics.capability,
        f"torch {numerics.torch}",
        numerics.precision,
        f"{numerics.threads} threads",
        "compiled" if numerics.compiled else "eager",
        f"parts of {numerics.micro_batch}" if numerics.micro_batch else "",
    )
    return ", ".join(word for word in words if word)


def pair(one: str, other: str) -> str:
    """The name of two classes, whichever comes first."""
    return " | ".join(sorted((one, other)))


def calibrate(comparisons: Sequence[Comparison]) -> Band:
    """The band that honest differences ask for.

    Of the largest that was measured, and not of a percentile, since some hundreds is what can be measured.
    """
    limits = {}
    for kind in sorted({kind for one in comparisons for kind in one.kinds}):
        parts = [one.kinds[kind] for one in comparisons if kind in one.kinds]
        sizes = {name: max(getattr(part, name) for part in parts) for name in SIZES}
        limits[kind] = Limit(
            **{name: max(LEAST, FACTOR * size) for name, size in sizes.items()},
            cosine=min(1 - LEAST, 1 - FACTOR * (1 - min(part.cosine for part in parts))),
        )
    return Band(limits=limits, measured=len(comparisons))


def rounding(comparison: Comparison) -> Band:
    """The band within a class that nobody measured: what sums in another order were seen to do."""
    limits = dict.fromkeys(comparison.kinds, ROUNDING)
    return Band(limits=limits, measured=1)


def judge(comparison: Comparison, band: Band | None, *, same_class: bool) -> Judgement:
    """What an auditor says of an interval.

    Bits decide within a class, and the band of its rounding where they differ. Without a band to compare
    with, what is not bit-equal is inconclusive: nobody is found guilty by a machine that cannot know.
    """
    if comparison.equal:
        return "agrees"
    if not comparison.counts or comparison.relative >= UNLIKE:
        return "differs"
    if band is None:
        return "inconclusive"
    factor = max(_excess(comparison, band))
    if factor <= 1:
        return "agrees"
    return "inconclusive" if factor <= DOUBTFUL and not same_class else "differs"


def _excess(comparison: Comparison, band: Band) -> Iterable[float]:
    """How many times the band each part of the state is off."""
    for kind, part in comparison.kinds.items():
        limit = band.limits.get(kind)
        if limit is None:
            yield float("inf")
            continue
        for name in SIZES:
            yield getattr(part, name) / getattr(limit, name)
        yield (1 - part.cosine) / (1 - limit.cosine)

"""Agreement on work that is cheap to compare: two of different owners, a third where they differ.

For encoded samples, features, assignments, measurements. Files that are byte for byte the same agree at
once; others are compared within a tolerance, by whoever has the libraries (`tolerance`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Copy:
    """One result of a unit that several have made."""

    account: str
    digest: str
    """Of all its files."""
    group: str = ""
    """Who else may be the same person, as a network's prefix; empty where it is not known."""


@dataclass(frozen=True)
class Agreement:
    """What follows from the copies so far."""

    canonical: int | None = None
    """The copy that is taken, the earliest of those that agree."""
    agreeing: tuple[int, ...] = ()
    outvoted: tuple[int, ...] = ()
    """Copies that differ from the ones that agree; nothing else follows for their owners than no credit."""
    missing: int = 0
    """Copies by other owners that are needed before anything can be said."""
    hopeless: bool = False
    """Whether so many differ from each other that the unit itself is in doubt."""


def independent(copies: Sequence[Copy], account: str, group: str = "") -> bool:
    """Whether somebody may make another copy: never one owner, never two of one group."""
    return all(copy.account != account and not (group and copy.group == group) for copy in copies)


def decide(
    copies: Sequence[Copy], alike: Callable[[Copy, Copy], bool], quorum: int = 2, most: int = 5
) -> Agreement:
    """What the copies, in the order in which they came, amount to.

    Copies that were made by one owner, or in one group, count once. A tolerance is no equivalence, so that a
    copy has to agree with the canonical one, not with a chain of neighbours.
    """
    votes = [i for i, copy in enumerate(copies) if independent(copies[:i], copy.account, copy.group)]
    for first in votes:
        near = [i for i in votes if i == first or _same(copies[first], copies[i], alike)]
        if len(near) >= quorum:
            return Agreement(first, tuple(near), tuple(i for i in votes if i not in near))
    if len(votes) >= most:
        return Agreement(hopeless=True)
    best = max((sum(i == j or _same(copies[i], copies[j], alike) for j in votes) for i in votes), default=0)
    return Agreement(missing=quorum - best)


def _same(left: Copy, right: Copy, alike: Callable[[Copy, Copy], bool]) -> bool:
    return left.digest == right.digest or alike(left, right)

"""A dispute over a chain of states, narrowed down to one interval that a third party replays.

Both sides committed to the hash of the state at the same steps and agree on the first, not on the last.
Somewhere between lies an interval whose beginning they share and whose end they do not: halving finds one
in log2(n) questions, whatever else either has made up, and replaying that interval alone says who is wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atoll.errors import AtollError

Side = Literal["worker", "auditor", "both"]


class NoDispute(AtollError):  # noqa: N818 - it is what it is called
    """Two chains between which there is nothing to settle."""


@dataclass(frozen=True)
class Dispute:
    """Committed points between which two sides part: they agree on `low` and not on `high`."""

    low: int
    high: int

    @property
    def settled(self) -> bool:
        """Whether one interval is left."""
        return self.high - self.low == 1

    @property
    def question(self) -> int:
        """The point on which both are asked for their hash next."""
        return (self.low + self.high) // 2

    def answered(self, same: bool) -> "Dispute":
        """Which half is left, by whether both said the same of the question."""
        return replace(self, low=self.question) if same else replace(self, high=self.question)


def parting(worker: Sequence[str], auditor: Sequence[str]) -> Dispute:
    """One interval at whose beginning two chains agree and at whose end they do not."""
    if len(worker) != len(auditor) or len(worker) < 2:
        raise NoDispute("chains of different lengths were committed to at different steps; audit them anew")
    if worker[0] != auditor[0]:
        raise NoDispute("the chains begin with different states; the audit was of another unit")
    if worker[-1] == auditor[-1]:
        raise NoDispute("both chains end with the same state; there is nothing to settle")
    dispute = Dispute(0, len(worker) - 1)
    while not dispute.settled:
        dispute = dispute.answered(worker[dispute.question] == auditor[dispute.question])
    return dispute


def wrong_side(worker: str, auditor: str, judge: str) -> Side:
    """Who is wrong of the end of an interval, by a third party's replay from the state on which both agree.

    If it is neither's, the three were not of one numerics class, and this settles nothing.
    """
    if judge == worker:
        return "auditor"
    return "worker" if judge == auditor else "both"


def settled(worker: Sequence[str], auditor: Sequence[str], replay: Callable[[int], str]) -> Side:
    """Who is wrong; `replay` gives the hash at the end of an interval from the state at its beginning."""
    dispute = parting(worker, auditor)
    return wrong_side(worker[dispute.high], auditor[dispute.high], replay(dispute.low))

"""Which checkpoints are final, so that only what was looked at goes into a model.

A segment is final if it was audited itself, or if audited ones followed, or if nobody disputed it in time;
and if the one it began from is final. What follows a rejected segment is worth nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from atoll.net.verification.policy import AuditPolicy


@dataclass(frozen=True)
class Segment:
    """One accepted or rejected part of a lineage."""

    name: str
    parent: str | None
    """The segment that it began from; None at the beginning of a lineage."""
    state: Literal["accepted", "rejected"] = "accepted"
    audited: bool = False
    at: float = 0.0
    """When it was accepted, by the coordinator's clock."""
    account: str = ""


def void(segments: Sequence[Segment]) -> set[str]:
    """Segments that were rejected, or that began from one that is void."""
    known = {segment.name: segment for segment in segments}
    return {
        segment.name for segment in segments if any(one.state == "rejected" for one in _line(segment, known))
    }


def final(segments: Sequence[Segment], policy: AuditPolicy, now: float) -> set[str]:
    """Segments that may be built into a model now."""
    known, gone = {segment.name: segment for segment in segments}, void(segments)
    followers = _audited_followers(segments, known, gone)

    def settled(segment: Segment) -> bool:
        return (
            segment.audited
            or followers[segment.name] >= policy.descendants
            or now - segment.at >= policy.window
        )

    return {
        segment.name
        for segment in segments
        if segment.name not in gone and all(settled(one) for one in _line(segment, known))
    }


def owed(segments: Sequence[Segment], chosen: str, replayed: Collection[str] = ()) -> list[str]:
    """Segments in the line of a checkpoint that a publisher has not replayed itself, the oldest first.

    A model is published after its publisher replayed one interval of each: audits that followed show that
    later steps were honest, not that those before were, and auditors may be friends of whom they audit. It
    costs one interval per segment, so that with many intervals per segment it is cheap.
    """
    known = {segment.name: segment for segment in segments}
    return [one.name for one in _line(known[chosen], known)[::-1] if one.name not in replayed]


def doubtful(segments: Sequence[Segment], account: str) -> list[str]:
    """What else is to be replayed once an account has been found out: all of its that nobody audited."""
    return [
        one.name for one in segments if one.account == account and one.state == "accepted" and not one.audited
    ]


def _line(segment: Segment, known: Mapping[str, Segment]) -> list[Segment]:
    """A segment and all that it goes back to."""
    line = [segment]
    while (parent := line[-1].parent) is not None:
        line.append(known[parent])
    return line


def _audited_followers(
    segments: Sequence[Segment], known: Mapping[str, Segment], gone: set[str]
) -> dict[str, int]:
    counts = dict.fromkeys(known, 0)
    for segment in segments:
        if segment.audited and segment.name not in gone:
            for ancestor in _line(segment, known)[1:]:
                counts[ancestor.name] += 1
    return counts

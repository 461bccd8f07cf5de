"""What every submitted state must be before anything else is asked of it; no tensor is opened here.

Two kinds of findings: a fault refuses the submission, whoever looks sees it; a doubt makes sure of an audit
and punishes nobody, since it rests on what is usual. Numbers come from `measured`, in a process of its own.
"""

import json
import math
import re
import statistics
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

HEADER = 2**22
"""Bytes that the header of a state may have: names of some ten thousand tensors."""
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
"""Bytes of a number by the types that a state may hold."""
USUAL = 5
"""Accepted segments from which a band is learnt; before that there is none, but all are audited."""
WIDTH = 4.0
"""Half the band in robust standard deviations of the logarithm."""
NARROWEST = math.log(1.5)
"""The least half width: honest segments of different ages differ by as much."""
COPY = 0.95
"""The cosine of two units' updates from which one is taken for a copy of the other."""
SLACK = 4.0
"""How much faster than its own measurement a machine may be before it is asked how."""
EMA, PIECE = "ema/", 1 << 20
"""How averaged weights are called in a state; bytes that are compared at a time."""
HASH = re.compile(r"[0-9a-f]{64}")


class Tensor(NamedTuple):
    """What a header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Findings:
    """What is wrong and what is odd, each by a short name with a sentence."""

    faults: Mapping[str, str] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)

    @property
    def admitted(self) -> bool:
        """Whether it may go on."""
        return not self.faults

    def __or__(self, other: "Findings") -> "Findings":
        return Findings({**self.faults, **other.faults}, {**self.doubts, **other.doubts})


class Malformed(ValueError):  # noqa: N818 - what a file is
    """A file that is no safetensors file, or one that pretends."""


def header(path: Path) -> dict[str, Tensor]:
    """Names, types and shapes of a safetensors file; Malformed if any byte of it is not accounted for."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if len(head) < 8:
            raise Malformed("it ends within the length of its header")
        (length,) = struct.unpack("<Q", head)
        if not 2 <= length <= min(HEADER, size - 8):
            raise Malformed(f"its header has {length} bytes, of {size} in all")
        text = file.read(length)
    try:
        tree = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"its header is no JSON ({error})") from None
    if not isinstance(tree, dict):
        raise Malformed("its header is no table")
    tree.pop("__metadata__", None)
    return _laid_out(tree, size - 8 - length)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a name comes twice")
    return tree


def _laid_out(tree: Mapping[str, Any], size: int) -> dict[str, Tensor]:
    """The tensors, which must fill the file one after the other."""
    tensors, spans = {}, []
    for name, entry in tree.items():
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)], **rest}:
                if rest or dtype not in SIZES or not all(_is_count(number) for number in shape):
                    raise Malformed(f"of {name[:80]!r} it says what a state cannot hold")
            case _:
                raise Malformed(f"of {name[:80]!r} it does not say type, shape and place")
        if stop - start != SIZES[dtype] * math.prod(shape):
            raise Malformed(f"{name[:80]!r} has not the bytes of its shape")
        tensors[name] = Tensor(dtype, tuple(shape))
        spans.append((start, stop))
    place = 0
    for start, stop in sorted(spans):
        if start != place:
            raise Malformed("its tensors overlap or leave gaps")
        place = stop
    if place != size:
        raise Malformed(f"{size - place} bytes belong to no tensor")
    return tensors


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**40


def shapes(path: Path, expected: Mapping[str, Tensor] | None) -> Findings:
    """Whether a file is a state with these tensors; without any expected, whether it is a state at all."""
    try:
        tensors = header(path)
    except Malformed as error:
        return Findings({"malformed": str(error)})
    if expected is None or tensors == dict(expected):
        return Findings()
    missing, more = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    other = [name for name in sorted(tensors.keys() & expected.keys()) if tensors[name] != expected[name]]
    what, names = next(
        (what, names)
        for what, names in (("is missing", missing), ("is not asked for", more), ("has another form", other))
        if names
    )
    return Findings({"shapes": f"{names[0][:120]!r} {what}, and {len(names) - 1} more"})


def weights(state: Path, network: Path) -> Findings:
    """Whether the network that is handed in is the averaged one of the last state, byte for byte."""
    try:
        averaged = {
            name.removeprefix(EMA): span for name, span in spans(state).items() if name.startswith(EMA)
        }
        published = spans(network)
    except Malformed as error:
        return Findings({"weights": f"the network is no network: {error}"})
    with state.open("rb") as left, network.open("rb") as right:
        for name, span in averaged.items():
            if name not in published or not _same_bytes(left, span, right, published[name]):
                return Findings({"weights": f"{name[:120]!r} of the network is not that of its last state"})
    return Findings()


def spans(path: Path) -> dict[str, tuple[int, int]]:
    """Where in a safetensors file the bytes of each tensor are."""
    header(path)  # every byte is accounted for
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        tree = json.loads(file.read(length))
    tree.pop("__metadata__", None)
    first = 8 + length
    return {
        name: (first + entry["data_offsets"][0], first + entry["data_offsets"][1])
        for name, entry in tree.items()
    }


def _same_bytes(left: BinaryIO, span: tuple[int, int], right: BinaryIO, other: tuple[int, int]) -> bool:
    if span[1] - span[0] != other[1] - other[0]:
        return False
    left.seek(span[0])
    right.seek(other[0])
    remaining = span[1] - span[0]
    while remaining:
        size = min(PIECE, remaining)
        if left.read(size) != right.read(size):
            return False
        remaining -= size
    return True


def chain(hashes: Sequence[str], first: int, last: int, every: int, before: str, after: str) -> Findings:
    """Whether the committed hashes are one for each point, from the given state to the one handed in."""
    points = len(range(first, last, every)) + 1
    if len(hashes) != points:
        return Findings({"chain": f"{len(hashes)} hashes for {points} points from step {first} to {last}"})
    if not all(HASH.fullmatch(value) for value in hashes):
        return Findings({"chain": "not every entry is a sha256"})
    if hashes[0] != before:
        return Findings({"chain": "it does not begin with the state that was handed out"})
    if hashes[-1] != after:
        return Findings({"chain": "it does not end with the state that was handed in"})
    if len(set(hashes)) != len(hashes):
        return Findings({"chain": "a state comes twice: no step was taken between"})
    return Findings()


def speed(work: float, elapsed: float, measured: float | None) -> Findings:
    """Whether so much work can be done in this time of the coordinator, at the speed once measured."""
    if measured is None or elapsed <= 0 or work / elapsed <= SLACK * measured:
        return Findings()
    factor = work / elapsed / measured
    return Findings(doubts={"speed": f"{factor:.1f} times as fast as the machine was measured to be"})


def usual(norms: Sequence[float]) -> tuple[float, float] | None:
    """The band of update norms, each over the sum of its learning rates, of accepted segments of one kind."""
    logs = [math.log(norm) for norm in norms if norm > 0 and math.isfinite(norm)]
    if len(logs) < USUAL:
        return None
    middle = statistics.median(logs)
    spread = 1.4826 * statistics.median([abs(value - middle) for value in logs])
    half = max(WIDTH * spread, NARROWEST)
    return math.exp(middle - half), math.exp(middle + half)


@dataclass(frozen=True)
class Known:
    """What other submissions have shown."""

    norms: Sequence[float] = ()
    """Update norms over learning rates of accepted segments of the same kind of job."""
    sketches: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Sketches of the updates of other units, by their names."""


def numbers(facts: Mapping[str, Any], known: Known) -> Findings:
    """What the numbers of an update (`measured`) say, beside those of others."""
    if not facts["finite"]:
        return Findings({"finite": "it holds numbers that are not finite"})
    if facts["changed"] == 0:
        return Findings({"unchanged": "no weight differs from the state that was handed out"})
    doubts = {}
    band, norm = usual(known.norms), facts["norm"]
    if band is not None and not band[0] <= norm <= band[1]:
        doubts["norm"] = (
            f"its update is {norm:.3g} per learning rate, where {band[0]:.3g} to {band[1]:.3g} are usual"
        )
    if facts["changed"] < 0.5:
        doubts["changed"] = f"only {facts['changed']:.0%} of the weights differ"
    for name, sketch in known.sketches.items():
        if (likeness := cosine(facts["sketch"], sketch)) > COPY:
            doubts["copy"] = f"its update is that of {name} (cosine {likeness:.3f})"
    return Findings(doubts=doubts)


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    """Of two sketches, which estimates that of the updates within about one over the root of their length."""
    norms = math.hypot(*left) * math.hypot(*right)
    return math.fsum(a * b for a, b in zip(left, right, strict=True)) / norms if norms else 0.0

"""Two states as an update, and two updates beside each other: relative difference and cosine.

Updates, never weights: twenty steps move weights by less than a hundredth, so that unchanged ones are
"within 1 %" of the right ones. Every part of a state is compared, since averaged weights are what samples
and moments are what later steps follow.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.net.verification.comparison import UNLIKE, Comparison, Difference

Tensors = Mapping[str, Tensor]
SKETCH = 256
"""Numbers of a sketch: cosines are off by about a sixteenth."""
KINDS = ("model", "ema", "exp_avg", "exp_avg_sq", "momentum_buffer")
"""Parts of a state that move by small steps; everything else in it is a count, and equal or not."""


def kind_of(name: str) -> str | None:
    """Of which part of a state a tensor is; None for counts."""
    parts = name.split("/")
    kind = parts[1] if parts[0] == "optimiser" and len(parts) > 2 else parts[0]
    return kind if kind in KINDS else None


class _Row(NamedTuple):
    """Sums over one tensor: squares of two updates and of their difference, weighed and plain."""

    own: float
    reference: float
    apart: float
    size: int
    plain_reference: float
    plain_apart: float
    step: float
    """The largest movement of a single number, as replayed."""
    jump: float
    """The largest difference of a single number."""

    @classmethod
    def of(cls, ours: Tensor, theirs: Tensor, weight: Tensor | None) -> "_Row":
        """In double precision."""
        a, b = ours.flatten(), theirs.flatten()
        w = 1.0 if weight is None else weight.flatten()
        squares = (a.square(), b.square(), (a - b).square())
        own, reference, apart = (float((w * square).sum()) for square in squares)
        largest = [float(square.max()) if square.numel() else 0.0 for square in squares[1:]]
        plain = [float(square.sum()) for square in squares[1:]]
        return cls(own, reference, apart, a.numel(), *plain, *largest)


def _difference(rows: Mapping[str, _Row]) -> Difference:
    own, reference, apart, count, plain_reference, plain_apart = (
        sum(values) for values in list(zip(*rows.values(), strict=True))[:6]
    )
    worst, tensor = max(
        (_ratio(row.apart, max(row.reference, reference * row.size / max(1, count))), name)
        for name, row in rows.items()
    )
    return Difference(
        relative=_ratio(apart, reference),
        cosine=_cosine(own, reference, apart),
        worst=worst,
        tensor=tensor,
        plain=_ratio(plain_apart, plain_reference),
        jump=_ratio(max(row.jump for row in rows.values()), max(row.step for row in rows.values())),
    )


def _ratio(apart: float, reference: float) -> float:
    """Of norms, from their squares; bounded, so that it can be written down."""
    if apart == 0:
        return 0.0
    value = math.sqrt(apart / reference) if reference > 0 else math.inf
    return min(value, UNLIKE) if math.isfinite(apart) else UNLIKE


def _cosine(own: float, reference: float, apart: float) -> float:
    if apart == 0:
        return 1.0
    norms = math.sqrt(own) * math.sqrt(reference)
    inner = (own + reference - apart) / 2
    return inner / norms if norms > 0 and math.isfinite(inner) else 0.0


def _weights(reference: Tensors) -> dict[str, Tensor]:
    """How much each weight matters, on average 1: the root of its squared gradients, as Adam remembers them.

    A weight without a gradient, as the bias of keys in attention is, moves by rounding alone and yet as far
    as any other, since Adam divides by that very root. What it does changes nothing.
    """
    marker = "optimiser/exp_avg_sq/"
    roots = {
        name.removeprefix(marker): value.double().clamp(min=0).sqrt()
        for name, value in reference.items()
        if name.startswith(marker)
    }
    total, count = (
        sum(float(root.sum()) for root in roots.values()),
        sum(root.numel() for root in roots.values()),
    )
    if not total > 0 or not math.isfinite(total):
        return {}
    return {
        f"{kind}/{name}": root * (count / total) for name, root in roots.items() for kind in ("model", "ema")
    }


def compare(before: Tensors, after: Tensors, reference: Tensors) -> Comparison:
    """The update from `before` to `after` beside that to `reference`, which was replayed.

    A state before the first step has no moments: they were zero.
    """
    if after.keys() != reference.keys():
        return Comparison(equal=False, counts=False, kinds={"model": Difference(relative=UNLIKE, cosine=0.0)})
    weights = _weights(reference)
    rows: dict[str, dict[str, _Row]] = {}
    counts = True
    for name, value in reference.items():
        kind, start = kind_of(name), before.get(name)
        if kind is None or after[name].shape != value.shape:
            counts &= after[name].shape == value.shape and torch.equal(after[name], value)
            continue
        origin = torch.zeros((), dtype=torch.float64) if start is None else start.double()
        row = _Row.of(after[name].double() - origin, value.double() - origin, weights.get(name))
        rows.setdefault(kind, {})[name] = row
    return Comparison(
        equal=all(torch.equal(after[name], value) for name, value in reference.items()),
        counts=counts,
        kinds={kind: _difference(those) for kind, those in rows.items()},
        tensors={
            name: (_ratio(row.apart, row.reference), _cosine(row.own, row.reference, row.apart))
            for name, row in rows.get("model", {}).items()
        },
    )


def sketch(before: Tensors, after: Tensors, seed: int = 0) -> list[float]:
    """A count sketch of the update of the weights: inner products of updates are those of their sketches.

    Linear, and the same for all who have the seed.
    """
    total = torch.zeros(SKETCH, dtype=torch.float64)
    for number, update in enumerate(_moved(before, after)):
        source = torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)
        bucket = torch.randint(SKETCH, (update.numel(),), generator=source)
        sign = torch.randint(2, (update.numel(),), generator=source) * 2 - 1
        total.index_add_(0, bucket, update * sign)
    return [round(value, 12) for value in total.tolist()]


def _moved(before: Tensors, after: Tensors) -> Iterable[Tensor]:
    for name in sorted(before.keys() & after.keys()):
        if kind_of(name) == "model":
            yield (after[name].double() - before[name].double()).flatten()


def is_finite(tensors: Tensors) -> bool:
    """Whether every number of a state is one."""
    return all(bool(value.isfinite().all()) for value in tensors.values() if value.is_floating_point())


def norm(before: Tensors, after: Tensors) -> float:
    """The length of the update of the weights."""
    return math.sqrt(sum(float(update @ update) for update in _moved(before, after)))


def changed(before: Tensors, after: Tensors) -> float:
    """The share of weights that differ at all."""
    pairs = [(int((update != 0).sum()), update.numel()) for update in _moved(before, after)]
    return sum(moved for moved, _ in pairs) / max(1, sum(count for _, count in pairs))

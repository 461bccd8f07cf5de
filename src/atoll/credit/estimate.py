"""From rows of held-out samples to numbers with standard errors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """Means and their standard errors, of equal shape."""

    mean: Tensor
    error: Tensor


def stratified_times(num: int, uniform: Float[Tensor, " num"]) -> Float[Tensor, " num"]:
    """One time in each of `num` equal parts of [0, 1] (Cochran 1977, §5.3): no part of it by luck alone."""
    return (torch.arange(num, dtype=uniform.dtype, device=uniform.device) + uniform) / num


def estimate(rows: Float[Tensor, "rows *values"], stratum: Int[Tensor, " rows"] | None = None) -> Estimate:
    """The mean over equally likely strata, Σ_s ȳ_s / S, with error √(Σ_s s²_s / n_s) / S (Cochran §5.3).

    Strata that are not there have no part in it. One with a single row tells nothing of its own spread: rows
    then count as if they were drawn at random, which errs on the side of caution.
    """
    rows = rows.double()
    if stratum is None or bool((torch.bincount(stratum)[stratum] < 2).any()):
        return Estimate(rows.mean(0), rows.std(0) / len(rows) ** 0.5)
    parts = [rows[stratum == index] for index in sorted(set(stratum.tolist()))]
    means = torch.stack([part.mean(0) for part in parts])
    variances = torch.stack([part.var(0) / len(part) for part in parts])
    return Estimate(means.mean(0), variances.sum(0).sqrt() / len(parts))


def by_group(
    rows: Float[Tensor, "rows *values"], group: Int[Tensor, " rows"], groups: int
) -> list[Estimate | None]:
    """The estimate among the rows of each group; None where there are fewer than two."""
    parts = [rows[group == index] for index in range(groups)]
    return [estimate(part) if len(part) > 1 else None for part in parts]


def shares(values: Estimate) -> Float[Tensor, " experts"]:
    """Each part of what all are worth; only what is positive counts, and nobody has a share of nothing."""
    positive = values.mean.clamp(min=0)
    return positive / positive.sum().clamp(min=1e-38)

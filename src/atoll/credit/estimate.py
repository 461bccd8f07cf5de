"""From rows of held-out samples to numbers with standard errors."""

from collections.abc import Callable
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


FEW, ENOUGH = 2, 4
"""Rows for each number that is fitted: to fit at all, and to have slopes that vary with time."""


@dataclass(frozen=True)
class Adjusted(Estimate):
    """A mean whose scatter was taken down by controls, with what is left of it in every stratum."""

    spread: Float[Tensor, " strata"]
    """Standard deviations; of all rows where a stratum has too few."""


def adjusted(
    values: Float[Tensor, " rows"],
    controls: Float[Tensor, "rows controls"],
    stratum: Int[Tensor, " rows"],
    sample: Int[Tensor, " rows"],
    strata: int,
    draws: float = torch.inf,
) -> Adjusted:
    """The mean over equally likely strata of values less what controls explain of them (Cochran §7.10).

    `controls` are centred: their mean in every stratum is zero. Each half of the rows is adjusted by what
    the other half says, so that the mean stays unbiased however few they are; with too few of them nothing
    is adjusted. Rows of one sample are no independent witnesses: errors are those of samples. The zero of
    controls was found from so many `draws` for each row, which is an error too.
    """
    half = torch.arange(len(values)) % 2 == 0
    rows = values.clone()
    place = stratum.double() / strata
    trend = torch.stack([torch.ones_like(place), place, place**2], 1)
    by_time = torch.cat([controls, controls * (place[:, None] - 0.5)], 1)
    wide = by_time if len(values) >= ENOUGH * 2 * (by_time.shape[1] + trend.shape[1]) else controls
    scale = wide.std(0).clamp(min=1e-38)
    for one, other in ((half, ~half), (~half, half)):
        if int(other.sum()) >= FEW * (wide.shape[1] + trend.shape[1]):
            design = torch.cat([wide[other] / scale, trend[other]], 1)
            slope = torch.linalg.lstsq(design, values[other, None]).solution[: wide.shape[1], 0]
            rows[one] -= wide[one] / scale @ slope
    counts = torch.bincount(stratum, minlength=strata)
    there = int((counts > 0).sum())
    sums = torch.zeros(strata, dtype=rows.dtype).index_add_(0, stratum, rows)
    means = sums / counts.clamp(min=1)
    apart = rows - means[stratum]
    squares = torch.zeros(strata, dtype=rows.dtype).index_add_(0, stratum, apart.square())
    pooled = (squares.sum() / (counts.sum() - there).clamp(min=1)).sqrt()
    spread = torch.where(counts > 3, (squares / (counts - 1).clamp(min=1)).sqrt(), pooled)
    free = (counts / (counts - 1).clamp(min=1)).sqrt()
    share = apart * free[stratum] / (there * counts[stratum])
    _, back = torch.unique(sample, return_inverse=True)
    by_sample = torch.zeros(int(back.max()) + 1, dtype=rows.dtype).index_add_(0, back, share)
    taken = (values - rows).square() / (draws * (there * counts[stratum]) ** 2)
    return Adjusted(means.sum() / there, (by_sample.square().sum() + taken.sum()).sqrt(), spread)


def jackknife(num: int, statistic: Callable[[Int[Tensor, " rows"]], Tensor], groups: int) -> Estimate:
    """A statistic of so many rows without most of its bias, G θ - (G-1) θ̄, and with its error.

    From θ_g, the same of all rows but those of one of G groups: what is of order 1 / num in its bias goes
    (Quenouille 1956), and √((G-1)/G Σ (θ_g - θ̄)²) is its standard error (Tukey 1958).
    """
    group = torch.arange(num) % groups
    whole = statistic(torch.arange(num))
    without = torch.stack([statistic((group != index).nonzero()[:, 0]) for index in range(groups)])
    mean = without.mean(0)
    spread = (without - mean).square().sum(0) * (groups - 1) / groups
    return Estimate(groups * whole - (groups - 1) * mean, spread.sqrt())


def shares(values: Estimate) -> Float[Tensor, " experts"]:
    """Each part of what all are worth; only what is positive counts, and nobody has a share of nothing."""
    positive = values.mean.clamp(min=0)
    return positive / positive.sum().clamp(min=1e-38)

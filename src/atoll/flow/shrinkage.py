"""Velocities whose errors are known to grow, shrunk towards one that is known in closed form.

A noise prediction is read off as v = (noise - x_t) / (1 - t): near t = 1 its errors are multiplied without
bound, and there x_t tells little more of x_0 than its two first moments do. So v is shrunk towards the
velocity g of a Gaussian with these moments, by as much as it errs, which is measured on real samples.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.flow.path import expand

Times = Float[Tensor, " batch"]
Samples = Float[Tensor, "batch *sample"]

CERTAIN = 2.0
"""So many standard errors below one a share still passes for one: the prediction is as good as exact."""


class Gaussian(NamedTuple):
    """Samples of which only two moments are known: a mean, the widest directions, and the rest round."""

    mean: Float[Tensor, "*sample"]
    basis: Float[Tensor, "rank *sample"]
    """Orthonormal directions."""
    variances: Float[Tensor, " rank"]
    """Along the basis."""
    rest: Float[Tensor, ""]
    """Along every other direction."""


def gaussian(x_0: Samples, rank: int) -> Gaussian:
    """The moments of samples: principal components, the rest round (Tipping & Bishop 1999, eq. 7 and 8)."""
    flat = x_0.flatten(1).double()
    mean = flat.mean(0)
    rank = min(rank, len(flat) - 1, flat.shape[1] - 1)
    spectrum, directions = _principal(flat - mean, rank)
    rest = ((flat - mean).square().sum() / len(flat) - spectrum.sum()).clamp(min=0) / (flat.shape[1] - rank)
    sample = x_0.shape[1:]
    parts = (mean.view(sample), directions.reshape(rank, *sample), spectrum, rest)
    return Gaussian(*(part.to(x_0.dtype) for part in parts))


def _principal(away: Float[Tensor, "samples values"], rank: int) -> tuple[Tensor, Tensor]:
    """The largest variances and their directions, by products on the shorter side of the table."""
    count, size = away.shape
    products = away.T @ away if size <= count else away @ away.T
    squares, vectors = torch.linalg.eigh(products)
    squares, vectors = squares.flip(0)[:rank].clamp(min=0), vectors.flip(1)[:, :rank].T
    if size > count:
        vectors = vectors @ away / squares.sqrt().clamp(min=1e-12)[:, None]
    return squares / count, vectors


def gaussian_velocity(known: Gaussian, x_t: Samples, t: Times) -> Samples:
    """E[noise - x_0 | x_t] where x_0 is Gaussian (DDM eq. 3 with Bayes' rule, direction by direction).

    With r = x_t - (1-t) μ, along a direction of variance λ: E[noise] = t r / s and E[x_0] = μ + (1-t) λ r / s
    for s = (1-t)² λ + t². So g = a(λ) r - μ with a(λ) = (t - (1-t) λ) / s.
    """
    away = (x_t - expand(1 - t, x_t) * known.mean).flatten(1)
    basis = known.basis.flatten(1)
    round_ = _slope(known.rest, t)[:, None]
    along = (_slope(known.variances, t[:, None]) - round_) * (away @ basis.T)
    return (round_ * away + along @ basis).view(x_t.shape) - known.mean


def _slope(variance: Tensor, t: Tensor) -> Tensor:
    return (t - (1 - t) * variance) / ((1 - t).square() * variance + t.square()).clamp(min=1e-12)


def share(target: Samples, predicted: Samples, base: Samples) -> float:
    """The share w of a prediction that makes |target - g - w (v - g)|² least, from 0 to 1.

    w = E<u - g, v - g> / E|v - g|². An exact prediction is E[u | x_t], so that E<u - g, v - g> = E|v - g|²
    and w = 1: nothing changes. Errors e that nothing else depends on give w = D / (D + E|e|²) for the
    distance D = E|E[u | x_t] - g|² (James & Stein 1961, §2): little is left of a prediction that errs much
    where the Gaussian is nearly right, and the loss is never above that of either alone.
    """
    step = (predicted - base).flatten(1).double()
    product, length = (step * (target - base).flatten(1).double()).sum(1), step.square().sum(1)
    total = float(length.sum())
    if total == 0:
        return 1.0
    best = float(product.sum()) / total
    error = float((product - best * length).square().sum().sqrt()) / total
    return 1.0 if best >= 1 - CERTAIN * error else max(0.0, best)


def shrunk(predicted: Samples, base: Samples, shares: Times) -> Samples:
    """Of each sample the share w of its prediction, g + w (v - g) (James & Stein 1961, §2)."""
    return base + expand(shares, base) * (predicted - base)


def between(t: Times, times: Float[Tensor, " some"], shares: Float[Tensor, " some"]) -> Times:
    """The shares at these times: on lines between those that were measured, beyond them as at the ends."""
    above = torch.searchsorted(times, t.contiguous()).clamp(1, len(times) - 1)
    low, high = times[above - 1], times[above]
    weight = ((t - low) / (high - low)).clamp(0, 1)
    return torch.lerp(shares[above - 1], shares[above], weight)

"""Samples of which only two moments are known: their velocity and their whole flow in closed form.

Near the noise every set of samples is nearly such a Gaussian, and a cluster is for longer than all data are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from atoll.flow import draws
from atoll.flow.path import expand

Times = Float[Tensor, " batch"]
Samples = Float[Tensor, "batch *sample"]

SPARE, ROUNDS = 8, 2
"""Directions that are sought besides those that are kept, and rounds of the search."""


class Gaussian(NamedTuple):
    """A mean, the widest directions, and the rest round."""

    mean: Float[Tensor, "*sample"]
    basis: Float[Tensor, "rank *sample"]
    """Orthonormal directions."""
    variances: Float[Tensor, " rank"]
    """Along the basis."""
    rest: Float[Tensor, ""]
    """Along every other direction."""


def fitted(x_0: Samples, rank: int) -> Gaussian:
    """The moments of samples: principal components, the rest round (Tipping & Bishop 1999, eq. 7 and 8)."""
    flat = x_0.flatten(1).double()
    mean = flat.mean(0)
    rank = min(rank, len(flat) - 1, flat.shape[1] - 1)
    spectrum, directions = _principal(flat - mean, rank)
    rest = ((flat - mean).square().sum() / len(flat) - spectrum.sum()).clamp(min=0) / (flat.shape[1] - rank)
    sample = x_0.shape[1:]
    parts = (mean.view(sample), directions.reshape(rank, *sample), spectrum, rest)
    return Gaussian(*(part.to(x_0.dtype) for part in parts))


def by_class(
    x_0: Samples, label: Int[Tensor, " batch"], classes: int
) -> Float[Tensor, "classes_and_none *sample"]:
    """How far the mean of each class lies from that of all samples; the last row, for no class, is zero.

    Means of few samples are drawn towards that of all: by n τ² / (n τ² + σ²), where σ² is the variance within
    classes and τ² that of their means, as in a one-way layout with random effects (Searle et al. 1992, §3).
    """
    flat, known = x_0.flatten(1).double(), label >= 0
    flat, label = flat[known] - flat.mean(0), label[known]
    counts = torch.bincount(label, minlength=classes).double()
    means = flat.new_zeros(classes, flat.shape[1]).index_add_(0, label, flat) / counts.clamp(min=1)[:, None]
    within = (flat - means[label]).square().sum()
    between = counts @ (means - (counts @ means) / counts.sum().clamp(min=1)).square().sum(1)
    seen, number = (counts > 0).sum(), counts.sum().clamp(min=1)
    noise = within / (number - seen).clamp(min=1)
    spread = (number - counts.square().sum() / number).clamp(min=1e-12)
    signal = ((between - (seen - 1) * noise) / spread).clamp(min=0)
    share = counts * signal / (counts * signal + noise).clamp(min=1e-12)
    shifts = torch.cat([share[:, None] * means, means.new_zeros(1, flat.shape[1])])
    return shifts.view(classes + 1, *x_0.shape[1:]).to(x_0.dtype)


def _principal(away: Float[Tensor, "samples values"], rank: int) -> tuple[Tensor, Tensor]:
    """The largest variances and their directions, by a random subspace (Halko et al. 2011, alg. 4.4).

    Where nearly all directions are wanted, all are.
    """
    count, size = away.shape
    width = min(rank + SPARE, count, size)
    near = torch.randn(size, width, generator=draws.generator(0, "directions"), dtype=away.dtype)
    for _ in range(ROUNDS):
        near = torch.linalg.qr(away.T @ (away @ near.to(away.device)))[0]
    seen = away @ near
    squares, turned = torch.linalg.eigh(seen.T @ seen)
    squares, turned = squares.flip(0)[:rank].clamp(min=0), turned.flip(1)[:, :rank]
    return squares / count, (near @ turned).T.contiguous()


def velocity(known: Gaussian, x_t: Samples, t: Times) -> Samples:
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
    return (t - (1 - t) * variance) / _variance(variance, t).clamp(min=1e-12)


def _variance(variance: Tensor, t: Tensor) -> Tensor:
    """Along a direction at time t: (1-t)² λ + t²."""
    return (1 - t).square() * variance + t.square()


def flowed(known: Gaussian, noise: Samples, t: Times) -> Samples:
    """Where noise has flowed to by time t: x_t = (1-t) μ + √((1-t)² Σ + t²) noise.

    It solves dx/dt = g(x, t) from x = noise at t = 1 (DDM eq. 3): along a direction of variance λ,
    d√s/dt = (t - (1-t) λ) / √s = a(λ) √s. No step is made, and so no error of one.
    """
    flat, basis = noise.flatten(1), known.basis.flatten(1)
    round_ = _variance(known.rest, t).sqrt()[:, None]
    along = (_variance(known.variances, t[:, None]).sqrt() - round_) * (flat @ basis.T)
    return expand(1 - t, noise) * known.mean + (round_ * flat + along @ basis).view(noise.shape)


def known_from(times: Sequence[float], own: Float[Tensor, " some"], closed: Float[Tensor, " some"]) -> float:
    """The least of these rising times from which on the closed form errs no more than a network, or 1.

    Both are mean squares of what is left of noise - x_0 (DDM eq. 4) on the same noisy samples.
    """
    begin = 1.0
    for time, network, gaussian in reversed(list(zip(times, own.tolist(), closed.tolist(), strict=True))):
        if gaussian > network:
            break
        begin = time
    return begin

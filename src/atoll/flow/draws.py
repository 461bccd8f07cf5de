"""Random numbers as a function of (seed, what for, index), drawn on the CPU.

Wall time, worker and history of the process never enter, so that a step or a sample can be made again
anywhere, alone.
"""

import hashlib
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


def generator(seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """A CPU generator for one purpose and one index."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))


class TrainingDraws(NamedTuple):
    """The random numbers of one training step."""

    t: Tensor
    """Times in [0, 1]."""
    noise: Tensor
    """Standard normal, shaped like the samples."""
    dropped: Tensor
    """Which samples hide their condition."""
    r: Tensor
    """Times, not above t, at which a step from t ends; t itself where none is taken."""
    uniform: Tensor
    """One more number in [0, 1) for each sample, for whoever must choose."""


def training_draws(
    seed: int,
    job: str,
    step: int,
    shape: Sequence[int],
    dropout: float,
    *,
    times: Literal["uniform", "logit-normal"] = "uniform",
    shift: float = 1.0,
    span: tuple[float, float] = (0.0, 1.0),
    pairs: float = 0.0,
) -> TrainingDraws:
    """Draw what one step of one job needs for a batch of this shape.

    Times are those of the law that fall into `span`. A share `pairs` of the samples, evenly spread so that
    every part of a batch has its own, gets two times, of which the later is t and the earlier r.
    """
    source = generator(seed, job, step)
    t = torch.rand(shape[0], generator=source)
    noise = torch.randn(*shape, generator=source)
    dropped = torch.rand(shape[0], generator=source) < dropout
    other, uniform = torch.rand(2, shape[0], generator=source)
    t, other = (within(uniform, times, shift, span) for uniform in (t, other))
    count = (torch.arange(shape[0] + 1, dtype=torch.float64) * pairs).floor()
    other = torch.where(count.diff() > 0, other, t)
    return TrainingDraws(torch.maximum(t, other), noise, dropped, torch.minimum(t, other), uniform)


def within(
    uniform: Float[Tensor, " batch"],
    times: Literal["uniform", "logit-normal"],
    shift: float = 1.0,
    span: tuple[float, float] = (0.0, 1.0),
) -> Float[Tensor, " batch"]:
    """Times of a law (Esser et al. 2024, §3.1) given that they lie in a span, from uniform numbers.

    With F the law's distribution function, F⁻¹(F(low) + u (F(high) - F(low))).
    """
    low, high = (_share_below(t, times, shift) for t in span)
    if (low, high) != (0.0, 1.0):
        uniform = (low + (high - low) * uniform.double()).to(uniform.dtype)
    t = shifted(logit_normal(uniform) if times == "logit-normal" else uniform, shift)
    return t if span == (0.0, 1.0) else t.clamp(*span)


def _share_below(t: float, times: Literal["uniform", "logit-normal"], shift: float) -> float:
    """The share of a law's times that are below t."""
    if t in (0.0, 1.0):
        return t
    even = t / (shift - (shift - 1) * t)
    return even if times == "uniform" else NormalDist().cdf(math.log(even / (1 - even)))


def logit_normal(uniform: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Times whose logit is standard normal (Esser et al. 2024, eq. 19), by inversion of uniform numbers."""
    return torch.special.ndtri(uniform.double().clamp(1e-7, 1 - 1e-7)).sigmoid().float()


def shifted(t: Float[Tensor, " batch"], shift: float) -> Float[Tensor, " batch"]:
    """More noise for larger samples: s t / (1 + (s - 1) t) (Esser et al. 2024, eq. 23)."""
    return t if shift == 1 else shift * t / (1 + (shift - 1) * t)


def sample_noise(seed: int, indices: Sequence[int], shape: Sequence[int]) -> Tensor:
    """The starting noise of samples number `indices`; each depends on (seed, its index) alone."""
    return torch.stack([torch.randn(*shape, generator=generator(seed, "noise", i)) for i in indices])


def sample_uniform(seed: int, indices: Sequence[int], purpose: str) -> Tensor:
    """One uniform number for each of the samples number `indices`."""
    return torch.cat([torch.rand(1, generator=generator(seed, purpose, i)) for i in indices])


def matched(
    noise: Float[Tensor, "batch *sample"],
    groups: Int[Tensor, " batch"],
    directions: Float[Tensor, "rank *sample"],
) -> Float[Tensor, "batch *sample"]:
    """Noise with the moments that it has on the average, so that few samples tell as much as many.

    The mean of each group is zero, and along orthonormal directions the covariance of all of it is the
    identity (moment matching; Glasserman 2003, §4.5). Where samples depend on their noise linearly, as those
    of a Gaussian do (`gaussian.flowed`), chance then moves neither their mean nor their covariance.
    """
    flat, basis = noise.flatten(1).double(), directions.flatten(1).double()
    several = set(groups.tolist())
    for group in several:
        own = groups == group
        if (count := int(own.sum())) > 1:
            flat[own] = (flat[own] - flat[own].mean(0)) * math.sqrt(count / (count - 1))
    basis = basis[: (len(flat) - len(several)) // 2]  # of fewer numbers there is nothing to match
    along = flat @ basis.T
    squares, turned = torch.linalg.eigh(along.T @ along / len(flat))
    flat += (along @ turned * squares.rsqrt() @ turned.T - along) @ basis
    return flat.to(noise.dtype).view(noise.shape)

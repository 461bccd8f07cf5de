"""Paths between data and noise, and the time convention: t = 0 is data, t = 1 is noise.

Ensembles live on the linear path, x_t = (1 - t) x_0 + t noise. An expert may have been trained on another,
x = α x_0 + σ noise. Two points with the same ratio α / σ differ by a factor only, so a state of the linear
path is turned into one of any other by finding the time with the same ratio and multiplying (`Path.match`,
`Path.scale`).

Equation numbers of DDM refer to McAllister et al., "Decentralized Diffusion Models" (arXiv 2501.05450), of
DDPM to Ho et al. (arXiv 2006.11239), of iDDPM to Nichol & Dhariwal (arXiv 2102.09672).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

INDICES = 1000
"""Number of noise levels of the discrete schedules; a network sees index / INDICES as its time."""


def expand(t: Float[Tensor, " batch"], like: Float[Tensor, "batch *sample"]) -> Float[Tensor, "batch *ones"]:
    """Give one number per sample as many axes as the samples have, so that it multiplies them."""
    return t.view(-1, *[1] * (like.ndim - 1))


def point(
    x_0: Float[Tensor, "batch *sample"], noise: Float[Tensor, "batch *sample"], t: Float[Tensor, " batch"]
) -> Float[Tensor, "batch *sample"]:
    """The point x_t = (1 - t) x_0 + t noise of the linear path (DDM §3.1; Liu et al. 2022, eq. 1)."""
    return x_0.lerp(noise, expand(t, x_0))


def velocity(
    x_0: Float[Tensor, "batch *sample"], noise: Float[Tensor, "batch *sample"]
) -> Float[Tensor, "batch *sample"]:
    """The conditional velocity u_t(x_t | x_0) = dx_t/dt = noise - x_0 of the linear path (DDM eq. 2)."""
    return noise - x_0


def data_prediction(
    x_t: Float[Tensor, "batch *sample"], velocity: Float[Tensor, "batch *sample"], t: Float[Tensor, " batch"]
) -> Float[Tensor, "batch *sample"]:
    """What the data will be as far as x_t tells, x_t - t v (DDM §3.1: x_t = x_0 + t (noise - x_0))."""
    return x_t - expand(t, x_t) * velocity


class LinearPath:
    """α = 1 - t, σ = t (Liu et al. 2022, eq. 1)."""

    last = 1.0
    """The largest own time; own times run from 0 to this, and are what networks are fed."""
    reach = (0.0, 1.0)
    """The times t of the linear path whose ratio of signal to noise occurs here."""

    def coefficients(
        self, time: Float[Tensor, " batch"]
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """(α, σ) at own times (Liu et al. 2022, eq. 1)."""
        return 1 - time, time

    def point(
        self,
        x_0: Float[Tensor, "batch *sample"],
        noise: Float[Tensor, "batch *sample"],
        time: Float[Tensor, " batch"],
    ) -> Float[Tensor, "batch *sample"]:
        """The point α x_0 + σ noise (Liu et al. 2022, eq. 1)."""
        return point(x_0, noise, time)

    def match(self, t: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """The own time with the same α / σ as the linear path at t (arXiv 2412.06264)."""
        return t

    def scale(self, t: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """What turns a state of the linear path into the state here, α / (1 - t) (arXiv 2412.06264)."""
        return torch.ones_like(t)


@dataclass(frozen=True)
class VariancePreservingPath:
    """α² + σ² = 1, given by λ = log(α / σ) at INDICES noise levels (DDPM eq. 4).

    Between two levels λ is linear in the index, so that every fractional index has a noise level and every
    noise level between the first and the last has one fractional index.
    """

    levels: tuple[float, ...]

    @classmethod
    def of_betas(cls, betas: Sequence[float]) -> "VariancePreservingPath":
        """The path of ᾱ_i = Π_{j ≤ i} (1 - β_j), α = √ᾱ (DDPM eq. 4)."""
        log_signal, levels = 0.0, []
        for beta in betas:
            log_signal += math.log1p(-beta)
            levels.append(0.5 * (log_signal - math.log(-math.expm1(log_signal))))
        return cls(tuple(levels))

    @property
    def last(self) -> float:
        """The own time of the last index (DDPM §4)."""
        return (len(self.levels) - 1) / INDICES

    @property
    def reach(self) -> tuple[float, float]:
        """The times t = σ / (α + σ) of the first and the last level (arXiv 2412.06264)."""
        return 1 / (1 + math.exp(self.levels[0])), 1 / (1 + math.exp(self.levels[-1]))

    def coefficients(
        self, time: Float[Tensor, " batch"]
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """α = √sigmoid(2λ), σ = √sigmoid(-2λ), accurate where they are tiny (arXiv 2107.00630)."""
        levels = _table(self.levels, time.dtype, time.device)
        index = (time * INDICES).clamp(0, len(levels) - 1)
        below = index.long().clamp(max=len(levels) - 2)
        level = torch.lerp(levels[below], levels[below + 1], index - below)
        return torch.sigmoid(2 * level).sqrt(), torch.sigmoid(-2 * level).sqrt()

    def point(
        self,
        x_0: Float[Tensor, "batch *sample"],
        noise: Float[Tensor, "batch *sample"],
        time: Float[Tensor, " batch"],
    ) -> Float[Tensor, "batch *sample"]:
        """The point α x_0 + σ noise (DDPM eq. 4)."""
        alpha, sigma = self.coefficients(time)
        return expand(alpha, x_0) * x_0 + expand(sigma, x_0) * noise

    def match(self, t: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Invert λ(index) = log((1 - t) / t); ends stand for what is beyond (arXiv 2506.02221)."""
        levels = _table(self.levels, t.dtype, t.device)
        level = torch.log((1 - t) / t).clamp(levels[-1], levels[0])
        above = torch.searchsorted(-levels, -level).clamp(1, len(levels) - 1)
        start, end = levels[above - 1], levels[above]
        return (above - 1 + (start - level) / (start - end)) / INDICES

    def scale(self, t: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """1 / √((1 - t)² + t²), since α² + σ² = 1 (DDPM eq. 4)."""
        return torch.hypot(1 - t, t).reciprocal()


Path = LinearPath | VariancePreservingPath


@functools.lru_cache(maxsize=32)
def _table(levels: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(levels, dtype=dtype, device=device)


def _cosine_betas() -> list[float]:
    """β_i = 1 - f((i + 1) / T) / f(i / T), f(s) = cos²((s + 0.008) / 1.008 · π / 2), at most 0.999."""
    f = [math.cos((i / INDICES + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(INDICES + 1)]
    return [min(1 - f[i + 1] / f[i], 0.999) for i in range(INDICES)]


def _between(first: float, last: float) -> list[float]:
    return [first + (last - first) * i / (INDICES - 1) for i in range(INDICES)]


PATHS: dict[str, Path] = {
    "linear": LinearPath(),
    "cosine": VariancePreservingPath.of_betas(_cosine_betas()),  # iDDPM eq. 17
    "linear-beta": VariancePreservingPath.of_betas(_between(1e-4, 0.02)),  # DDPM §4, and DiT
    "scaled-linear": VariancePreservingPath.of_betas(  # Stable Diffusion: √β is linear
        [root**2 for root in _between(0.00085**0.5, 0.012**0.5)]
    ),
}

"""A finite dataset whose experts, posterior and marginal velocity are known in closed form.

Each data point is a Gaussian of width zero, so p_t(x | x_0) = N((1-t) x_0, t² I) and everything is a softmax.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class FiniteData:
    points: Tensor  # (n, *sample), float64
    cluster: Tensor  # (n,)
    clusters: int

    def _log_density(self, x_t: Tensor, t: Tensor) -> Tensor:
        """log p_t(x | x_0) of every point up to a constant: (batch, n)."""
        mean = (1 - t).view(-1, 1, 1) * self.points.flatten(1)[None]
        return -(x_t.flatten(1)[:, None] - mean).square().sum(2) / (2 * t[:, None] ** 2)

    def _velocity(self, x_t: Tensor, t: Tensor, log_weight: Tensor) -> Tensor:
        """E[noise - x_0 | x_t] with noise = (x_t - (1-t) x_0) / t."""
        weight = log_weight.softmax(1)
        mean = (weight @ self.points.flatten(1)).view_as(x_t)
        t = t.view(-1, *[1] * (x_t.ndim - 1))
        return (x_t - mean) / t

    def velocity(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self._velocity(x_t, t, self._log_density(x_t, t))

    def expert(self, k: int, x_t: Tensor, t: Tensor) -> Tensor:
        outside = torch.where(self.cluster == k, 0.0, -torch.inf).to(x_t.dtype)
        return self._velocity(x_t, t, self._log_density(x_t, t) + outside)

    def posterior(self, x_t: Tensor, t: Tensor) -> Tensor:
        weight = self._log_density(x_t, t).softmax(1)
        return weight @ nn.functional.one_hot(self.cluster, self.clusters).to(x_t.dtype)

    @property
    def priors(self) -> Tensor:
        return torch.bincount(self.cluster, minlength=self.clusters).double() / len(self.cluster)


def grouped(clusters: int, per_cluster: list[int], dims: int, spread: float, seed: int = 0) -> FiniteData:
    """Points around one random centre per cluster."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, dims, generator=g, dtype=torch.float64)
    cluster = torch.cat([torch.full((n,), k) for k, n in enumerate(per_cluster)])
    noise = torch.randn(len(cluster), dims, generator=g, dtype=torch.float64)
    return FiniteData(centres[cluster] + spread * noise, cluster, clusters)


class ExactExpert(nn.Module):
    """An expert that knows its cluster by heart; counts how many samples it was asked about."""

    def __init__(self, data: FiniteData, k: int) -> None:
        super().__init__()
        self.data, self.k, self.asked = data, k, 0

    def forward(self, x_t: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        self.asked += len(x_t)
        return self.data.expert(self.k, x_t.double(), t.double().clamp(min=1e-9)).to(x_t.dtype)


class ExactRouter(nn.Module):
    """A router that knows the posterior."""

    def __init__(self, data: FiniteData) -> None:
        super().__init__()
        self.data = data

    def forward(self, x_t: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        return (
            self.data.posterior(x_t.double(), t.double().clamp(min=1e-9))
            .clamp(min=1e-300)
            .log()
            .to(x_t.dtype)
        )

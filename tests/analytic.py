"""A finite dataset whose experts, posterior and marginal velocity are known in closed form.

Each data point is a Gaussian of width zero, so p_t(x | x_0) = N((1-t) x_0, t² I) and everything is a softmax.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.flow.path import PATHS


@dataclass(frozen=True)
class FiniteData:
    points: Tensor  # (n, *sample), float64
    cluster: Tensor  # (n,)
    clusters: int

    def _log_density(self, x_t: Tensor, t: Tensor) -> Tensor:
        """log p_t(x | x_0) of every point up to a constant: (batch, n)."""
        x, points, alpha = x_t.flatten(1), self.points.flatten(1), 1 - t[:, None]
        squares = x.square().sum(1, keepdim=True) + alpha**2 * points.square().sum(1)
        return (alpha * (x @ points.T) - squares / 2) / t[:, None] ** 2

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


@dataclass(frozen=True)
class GaussianMixture:
    """A mixture of round Gaussians, each of one cluster: smooth data whose exact predictors are known."""

    means: Tensor  # (components, dims), float64
    width: float
    cluster: Tensor  # (components,)
    clusters: int

    @property
    def priors(self) -> Tensor:
        return torch.bincount(self.cluster, minlength=self.clusters).double() / len(self.cluster)

    def draw(self, num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Samples and their clusters."""
        g = torch.Generator().manual_seed(seed)
        component = torch.randint(len(self.means), (num,), generator=g)
        noise = torch.randn(num, self.means.shape[1], generator=g, dtype=torch.float64)
        return self.means[component] + self.width * noise, self.cluster[component]

    def _log_weights(self, x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """log p(x | component) where x = alpha x_0 + sigma noise, up to a constant: (batch, components)."""
        variance = (alpha * self.width) ** 2 + sigma**2
        return (x[:, None] - alpha[:, None, None] * self.means).square().sum(2) / (-2 * variance[:, None])

    def mean(self, x: Tensor, alpha: Tensor, sigma: Tensor, k: int | Tensor | None = None) -> Tensor:
        """E[x_0 | x] of all data, of one cluster's, or of each sample's own cluster."""
        logits = self._log_weights(x, alpha, sigma)
        if k is not None:
            logits = logits.masked_fill(self.cluster != torch.as_tensor(k).view(-1, 1), -torch.inf)
        gain = alpha * self.width**2 / ((alpha * self.width) ** 2 + sigma**2)
        residual = x[:, None] - alpha[:, None, None] * self.means
        each = self.means + gain[:, None, None] * residual
        return torch.einsum("bc,bcd->bd", logits.softmax(1), each)

    def posterior(self, x: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(self.cluster, self.clusters).double()
        return self._log_weights(x, alpha, sigma).softmax(1) @ one_hot

    def velocity(self, x_t: Tensor, t: Tensor, k: int | Tensor | None = None) -> Tensor:
        """E[noise - x_0 | x_t] on the linear path."""
        return (x_t - self.mean(x_t, 1 - t, t, k)) / t[:, None]


def mixture_of(clusters: int, each: int, dims: int, width: float = 0.2, seed: int = 0) -> GaussianMixture:
    """Components around one random centre per cluster, standardised to about unit variance."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, 1, dims, generator=g, dtype=torch.float64)
    means = centres + 0.4 * torch.randn(clusters, each, dims, generator=g, dtype=torch.float64)
    means = means.flatten(0, 1)
    means = (means - means.mean(0)) / (means.std() ** 2 + width**2) ** 0.5
    return GaussianMixture(means, width, torch.arange(clusters).repeat_interleave(each), clusters)


class ExactPredictor(nn.Module):
    """The network that training would find: the prediction of one objective, asked in its own terms."""

    def __init__(self, data: GaussianMixture, path: str, prediction: str, k: int | None = None) -> None:
        super().__init__()
        self.data, self.path, self.prediction, self.k = data, PATHS[path], prediction, k

    def forward(self, x: Tensor, time: Tensor, condition: Tensor | None = None) -> Tensor:
        alpha, sigma = (value.double() for value in self.path.coefficients(time))
        state = x.double()
        x_0 = self.data.mean(state, alpha, sigma, self.k)
        noise = (state - alpha[:, None] * x_0) / sigma[:, None].clamp(min=1e-12)
        a, b = {
            "velocity": (-torch.ones_like(alpha), torch.ones_like(alpha)),
            "noise": (torch.zeros_like(alpha), torch.ones_like(alpha)),
            "data": (torch.ones_like(alpha), torch.zeros_like(alpha)),
            "v": (-sigma, alpha),
        }[self.prediction]
        return (a[:, None] * x_0 + b[:, None] * noise).to(x.dtype)


class MixtureRouter(nn.Module):
    """The posterior of a Gaussian mixture on the linear path."""

    def __init__(self, data: GaussianMixture) -> None:
        super().__init__()
        self.data = data

    def forward(self, x_t: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        t = t.double().clamp(1e-9, 1)
        return self.data.posterior(x_t.double(), 1 - t, t).clamp(min=1e-300).log().to(x_t.dtype)


def sliced_wasserstein(left: Tensor, right: Tensor, directions: int = 64) -> float:
    """Mean distance of the sorted projections on random directions; both sets have the same size."""
    g = torch.Generator().manual_seed(0)
    along = torch.randn(left.shape[1], directions, generator=g, dtype=torch.float64)
    along = along / along.norm(dim=0)
    a, b = ((points.double() @ along).sort(0).values for points in (left, right))
    return (a - b).abs().mean().item()

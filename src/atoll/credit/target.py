"""What the target of a noisy held-out sample is on the average: less noise in every value for no network."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def expected_velocity(
    x_t: Float[Tensor, "batch *sample"],
    t: Float[Tensor, " batch"],
    points: Float[Tensor, "points *sample"],
    possible: Bool[Tensor, "batch points"],
) -> Float[Tensor, "batch *sample"]:
    """E[noise - x_0 | x_t] where x_0 is one of the points, equally likely: (x_t - E[x_0|x_t])/t (DDM eq. 3).

    `possible` are those of its kind: where values are told by kind, as by cluster, the mean is given x_t and
    the kind, or else samples of one kind would answer for those of another.

    Values are linear in the target, so its mean given x_t may take its place (Rao-Blackwell): the same values
    on the held-out points with less scatter. It helps near the noise, where many points could have been x_0,
    and there the target scatters most. The points must be those that x_t was made from.
    """
    flat, data = x_t.flatten(1).double(), points.flatten(1).double()
    scale = (1 - t.double())[:, None]
    squares = flat.square().sum(1)[:, None] - 2 * scale * (flat @ data.T) + scale**2 * data.square().sum(1)
    logits = (-squares / (2 * t.double()[:, None] ** 2)).masked_fill(~possible, -torch.inf)
    weight = logits.softmax(1)
    return ((flat - weight @ data) / t.double()[:, None]).view(x_t.shape).to(x_t.dtype)


def gaussian_velocity(
    x_t: Float[Tensor, "batch *sample"],
    t: Float[Tensor, " batch"],
    mean: Float[Tensor, "*sample"],
    variance: Float[Tensor, "*sample"],
) -> Float[Tensor, "batch *sample"]:
    """E[noise - x_0 | x_t] where the values of x_0 are Gaussian, each alone (DDM eq. 3 with Bayes' rule).

    With r = x_t - (1-t) μ and s = (1-t)² σ² + t²: E[noise] = t r / s and E[x_0] = μ + (1-t) σ² r / s,
    finite at both ends. A base that nobody made: it knows two moments of the data.
    """
    t = t.view(-1, *[1] * mean.ndim)
    away = x_t - (1 - t) * mean
    return (t - (1 - t) * variance) / ((1 - t) ** 2 * variance + t**2).clamp(min=1e-12) * away - mean

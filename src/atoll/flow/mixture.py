"""Expert velocities and posterior to one velocity: full, top-k, ancestral.

A strategy turns the posterior p(k | x_t, t) into weights over experts that sum to one. Weights of zero mean
that an expert need not be asked.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def combine(
    weights: Float[Tensor, "batch experts"], velocities: Float[Tensor, "experts batch *sample"]
) -> Float[Tensor, "batch *sample"]:
    """The marginal velocity Σ_k p(k | x_t) v_k(x_t) (DDM eq. 5)."""
    return torch.einsum("bk,kb...->b...", weights, velocities)


def full(posterior: Float[Tensor, "batch experts"]) -> Float[Tensor, "batch experts"]:
    """Every expert, weighed by the posterior: exact if experts and router are (DDM eq. 5)."""
    return posterior


def top_k(posterior: Float[Tensor, "batch experts"], k: int) -> Float[Tensor, "batch experts"]:
    """The k most probable experts, renormalised (DDM §3.4). Greedy: it favours clusters that win early."""
    values, experts = posterior.topk(min(k, posterior.shape[1]), dim=1)
    return torch.zeros_like(posterior).scatter(1, experts, values / values.sum(1, keepdim=True))


def draw(
    posterior: Float[Tensor, "batch experts"], uniform: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """One expert per sample, by inversion of the cumulative posterior at a uniform number in [0, 1).

    Drawn once, from the prior or from p(k | condition), and kept to the end this is ancestral sampling from
    p(x) = Σ_k p(k) p(x | k): exact, and as cheap as one expert (Bishop 2006, §8.1.2).
    """
    cumulative = posterior.double().cumsum(1)
    position = uniform.double() * cumulative[:, -1]
    return torch.searchsorted(cumulative, position[:, None], right=True)[:, 0].clamp(
        max=posterior.shape[1] - 1
    )


def one_hot(expert: Int[Tensor, " batch"], experts: int) -> Float[Tensor, "batch experts"]:
    """All weight on one expert per sample."""
    weights = torch.zeros(len(expert), experts, device=expert.device)
    return weights.scatter(1, expert[:, None], 1.0)

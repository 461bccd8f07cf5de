"""Expert velocities and posterior to one velocity: full, top-k, threshold, nucleus, sample, ancestral.

A strategy turns the posterior p(k | x_t, t) into weights over experts that sum to one. Weights of zero mean
that an expert need not be asked. Strategies that keep only some experts renormalise over those.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Rows = Int[Tensor, " some"] | slice
"""Some rows of a batch, each at most once; `slice(None)` is all of them."""


class Answer(NamedTuple):
    """The velocity of one expert at some rows of a batch."""

    expert: int
    rows: Rows
    velocity: Float[Tensor, "some *sample"]


class Combined(NamedTuple):
    """One velocity from several, and how far those were apart."""

    velocity: Float[Tensor, "batch *sample"]
    disagreement: Float[Tensor, " batch"]
    """Σ_k w_k |v_k - v|² / |v|² (after EDA, arXiv 2602.02685); zero where one expert has all the weight."""
    parts: Float[Tensor, "batch experts *sample"] | None = None
    """w_k v_k of each expert, where they are wanted: what each adds to the velocity."""


def combine(
    weights: Float[Tensor, "batch experts"], answers: Iterable[Answer], *, apart: bool = False
) -> Combined:
    """The marginal velocity v = Σ_k p(k | x_t) v_k(x_t) (DDM eq. 5).

    An expert answers for the rows in which it has weight, in as many parts as it likes; the sum is taken as
    the answers come, so that only one of them need be held, unless what each adds is wanted too (`apart`).
    Since the weights sum to one, Σ_k w_k |v_k - v|² = Σ_k w_k |v_k|² - |v|², and an expert that alone answers
    for all rows has all of it.
    """
    mean: Tensor | None = None
    square: Tensor | None = None
    parts: Tensor | None = None
    rest = iter(answers)
    first, second = next(rest), next(rest, None)
    alone = second is None and isinstance(first.rows, slice) and len(first.velocity) == len(weights)
    if alone and not apart:
        return Combined(first.velocity, torch.zeros_like(weights[:, 0]))
    for expert, rows, v in itertools.chain((first,) if second is None else (first, second), rest):
        w = weights[:, expert][rows].to(v.dtype)
        weighted = w.view(-1, *[1] * (v.ndim - 1)) * v
        if apart:
            parts = v.new_zeros(*weights.shape, *v.shape[1:]) if parts is None else parts
            parts[rows, expert] = weighted
        mean = _added(mean, len(weights), rows, weighted)
        square = _added(square, len(weights), rows, (weighted * v).flatten(1).sum(1))
    assert mean is not None, "somebody has weight"
    assert square is not None
    length = mean.square().flatten(1).sum(1)
    return Combined(mean, (square / length.clamp(min=1e-12) - 1).clamp(min=0).float(), parts)


def _added(total: Tensor | None, size: int, rows: Rows, part: Tensor) -> Tensor:
    """A sum over `size` rows, with something added to some of them; None is nothing yet."""
    if total is None and len(part) == size and isinstance(rows, slice):
        return part
    if total is None:
        total = part.new_zeros(size, *part.shape[1:])
    if isinstance(rows, slice):
        total[rows] += part
        return total
    return total.index_add_(0, rows, part)


def of_everyone(velocities: Float[Tensor, "experts batch *sample"]) -> list[Answer]:
    """The answers of experts that were all asked about everything: every v_k(x_t) (DDM eq. 5)."""
    return [Answer(expert, slice(None), v) for expert, v in enumerate(velocities)]


def temper(posterior: Float[Tensor, "batch experts"], temperature: float) -> Float[Tensor, "batch experts"]:
    """p^(1/T) renormalised: T < 1 sharpens, T > 1 flattens, T = 1 changes nothing (DDM §5.2)."""
    if temperature == 1:
        return posterior
    return (posterior.log() / temperature).softmax(1)


def restrict(
    posterior: Float[Tensor, "batch experts"], served: Bool[Tensor, " experts"]
) -> Float[Tensor, "batch experts"]:
    """The posterior given that the cluster is one of those served: p(k | x_t, k ∈ S) (Bayes; DDM eq. 5).

    It is the exact posterior of the model of the served clusters' data. Where the router gives all of them
    nothing, they share evenly rather than dividing zero by zero.
    """
    kept = posterior * served
    total = kept.sum(1, keepdim=True)
    return torch.where(total > 0, kept / total.clamp(min=1e-38), served / served.sum())


def protect(
    posterior: Float[Tensor, "batch experts"],
    first: Bool[Tensor, " experts"],
    second: Bool[Tensor, " experts"],
) -> Float[Tensor, "batch experts"]:
    """Weights of (v_1 + v_2) / 2, the mean of two halves' mixtures: CP-Δ for KL (arXiv 2302.10870, §3).

    p ∝ √(q_1 q_2) has the mean of both scores, and so of both velocities, which are affine in scores. It is
    no mixture: what only one half has seen is unlikely under it.
    """
    return (restrict(posterior, first) + restrict(posterior, second)) / 2


def full(posterior: Float[Tensor, "batch experts"]) -> Float[Tensor, "batch experts"]:
    """Every expert, weighed by the posterior: exact if experts and router are (DDM eq. 5)."""
    return posterior


def top_k(posterior: Float[Tensor, "batch experts"], k: int) -> Float[Tensor, "batch experts"]:
    """The k most probable experts, renormalised (DDM §3.4). Greedy: it favours clusters that win early."""
    values, experts = posterior.topk(min(k, posterior.shape[1]), dim=1)
    return torch.zeros_like(posterior).scatter(1, experts, values / values.sum(1, keepdim=True))


def threshold(posterior: Float[Tensor, "batch experts"], least: float) -> Float[Tensor, "batch experts"]:
    """Experts of at least this probability, renormalised; always the most probable one (DDM §3.4)."""
    best = posterior.max(1, keepdim=True).values
    kept = torch.where((posterior >= least) | (posterior == best), posterior, 0)
    return kept / kept.sum(1, keepdim=True)


def with_rest(
    weights: Float[Tensor, "batch experts"], posterior: Float[Tensor, "batch experts"]
) -> Float[Tensor, "batch experts"]:
    """Weights of experts that were kept, not renormalised: they sum to how sure the posterior is of them.

    What is missing to one belongs to a network v_0 of all data, v = Σ_{k ∈ S} p_k v_k + (1 - Σ_{k ∈ S} p_k)
    v_0 (DDM eq. 5 with v_0 in the place of what was left out): where x_t tells nothing, that is nearly v_0,
    and not the largest clusters alone.
    """
    return weights * (posterior * (weights > 0)).sum(1, keepdim=True)


def nucleus(posterior: Float[Tensor, "batch experts"], mass: float) -> Float[Tensor, "batch experts"]:
    """The fewest experts that together have this probability, renormalised (Holtzman et al. 2020, eq. 2)."""
    values, experts = posterior.sort(dim=1, descending=True)
    before = values.cumsum(1) - values
    kept = torch.where(before < mass, values, 0)
    return torch.zeros_like(posterior).scatter(1, experts, kept / kept.sum(1, keepdim=True))


def sample(
    posterior: Float[Tensor, "batch experts"], uniform: Float[Tensor, "batch draws"]
) -> Float[Tensor, "batch experts"]:
    """Experts drawn from the posterior, each with weight one over the number of draws (DDM §3.4).

    Its mean over draws is the posterior: an unbiased estimate of the full velocity.
    """
    drawn = [one_hot(draw(posterior, column), posterior.shape[1]) for column in uniform.unbind(1)]
    return torch.stack(drawn).mean(0)


def draw(
    posterior: Float[Tensor, "batch experts"], uniform: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """One expert per sample, by inversion of the cumulative posterior at a uniform number in [0, 1).

    Drawn once, from the prior or from p(k | condition), and kept to the end this is ancestral sampling from
    p(x) = Σ_k p(k) p(x | k): exact, and as cheap as one expert (Bishop 2006, §8.1.2).
    """
    cumulative = posterior.double().cumsum(1)
    position = uniform.double() * cumulative[:, -1]
    expert = torch.searchsorted(cumulative, position[:, None], right=True)[:, 0]
    return expert.clamp(max=posterior.shape[1] - 1)


def given_class(
    counts: Int[Tensor, "experts classes"], priors: Float[Tensor, " experts"]
) -> Float[Tensor, "classes_and_none experts"]:
    """p(k | class) = n_kc / n_c for each class; last, and where a class has no samples, the prior.

    It is the posterior p(k | x_t, class) at t = 1, where x_t tells nothing (DDM eq. 4 given a condition).
    """
    counts = counts.to(priors.dtype)
    seen = counts.sum(0) > 0
    shares = torch.where(seen, counts / counts.sum(0).clamp(min=1), priors[:, None])
    return torch.cat([shares.T, priors[None]])


def one_hot(expert: Int[Tensor, " batch"], experts: int) -> Float[Tensor, "batch experts"]:
    """All weight on one expert per sample."""
    weights = torch.zeros(len(expert), experts, device=expert.device)
    return weights.scatter(1, expert[:, None], 1.0)

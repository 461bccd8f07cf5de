"""How likely a finished sample is under each expert, from its velocity errors at many noise levels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

WIDEST = 6.0
"""Logits of the times that are looked at lie in ± this; outside, samples are all data or all noise."""


def times(num: int, uniform: Float[Tensor, " num"], widest: float = WIDEST) -> Float[Tensor, " num"]:
    """Times whose logit is spread evenly over ± `widest`, one in each of `num` equal parts of it."""
    grid = (torch.arange(num, dtype=uniform.dtype, device=uniform.device) + uniform) / num
    return ((2 * grid - 1) * widest).sigmoid()


def negative_log_likelihood(
    errors: Float[Tensor, "times num experts"], t: Float[Tensor, " times"], widest: float = WIDEST
) -> Float[Tensor, "num experts"]:
    """∫ (1-t)/t E‖(noise - x_0) - v_i(x_t)‖² dt up to a constant that all experts share, in nats.

    The variational bound (Kingma et al. 2021, eq. 15) with noise - predicted noise = (1-t) (v* - v_i); in
    u = logit t, dt = t (1-t) du, so that evenly spread logits count (1-t)² each. `errors` are
    sums of squares, with the same noise for all experts: only differences between experts mean anything.
    """
    weight = (1 - t.double()).square()
    return torch.einsum("t,tnk->nk", weight, errors.double()) * (2 * widest / len(t))


@dataclass(frozen=True)
class Calibration:
    """What to take off each expert's answers, and how to soften them, so that known makers are named."""

    offsets: Float[Tensor, " experts"]
    """In nats, zero on the average: what an expert is worse by at everything."""
    temperature: float
    """τ: nats of difference that count as one."""

    def applied(self, nll: Float[Tensor, "num experts"]) -> Float[Tensor, "num experts"]:
        """Likelihoods without what is no property of the sample."""
        return nll.double() - self.offsets.to(nll.device, torch.float64)


ROUNDS, CLOSE = 200, 1e-9
"""Newton's steps at most, and the slope at which no more are taken."""


def calibrated(nll: Float[Tensor, "num experts"], maker: Int[Tensor, " num"]) -> Calibration:
    """Offsets b_i and τ by which samples of known makers are likeliest: max Σ_n Σ_i y_ni log p(i | x_n).

    p(i | x) = softmax_i((b_i - NLL_i(x)) / τ) is right where an expert says NLL_i = -log p_i + e_i whatever
    e_i is, as one does that is worse at everything: b_i = e_i. It is logistic regression with one slope
    (temperature scaling with biases: Guo et al. 2017, §4.2; Alexandari et al. 2020, §3), concave in
    (1/τ, b/τ), so that there is one answer. Each maker counts as much, however many samples of it there are,
    and priors come in later (Prentice & Pyke 1979). Makers that are always told apart would make it
    infinitely sure: targets are as if one sample more of each maker were anybody's, y = (n + 1/K) / (n + 1)
    for the maker of n and 1/K / (n + 1) for each other (as Platt 1999, eq. 10, has two). An expert of which
    there is no sample keeps the mean offset, zero. Caveat: it is fitted to samples of clusters and says
    nothing of pictures that are of none.
    """
    there = ((torch.bincount(maker, minlength=nll.shape[1]) > 0) & nll.isfinite().all(0).cpu()).nonzero()[
        :, 0
    ]
    chosen = torch.isin(maker, there)
    offsets = torch.zeros(nll.shape[1], dtype=torch.float64)
    if len(there) < 2:
        return Calibration(offsets, 1.0)
    rows, place = -nll.double().cpu()[chosen][:, there], torch.searchsorted(there, maker[chosen])
    scale = rows.std(1).mean().clamp(min=1e-12)
    counts = torch.bincount(place).double()[place]
    targets = (1 / (len(there) * (counts + 1)))[:, None].repeat(1, len(there))
    targets[torch.arange(len(place)), place] += counts / (counts + 1)
    rows = (rows - rows.mean(1, keepdim=True)) / scale
    slope, biases = _fitted(rows, targets, 1 / (counts * len(there)))
    if slope <= 0:  # worse likelihoods would mean the maker: nothing is known then
        return Calibration(offsets, 1.0)
    offsets[there] = biases * scale / slope
    return Calibration(offsets, float(scale) / slope)


def _fitted(
    rows: Float[Tensor, "num experts"], targets: Float[Tensor, "num experts"], weight: Float[Tensor, " num"]
) -> tuple[float, Float[Tensor, " experts"]]:
    """The slope and the biases of softmax(slope · rows + biases) nearest to the targets, by Newton's method.

    Biases sum to zero: a constant changes nothing, and the penalty below takes it away.
    """
    experts = rows.shape[1]
    design = torch.cat([rows[:, :, None], torch.eye(experts, dtype=rows.dtype).expand(len(rows), -1, -1)], 2)
    fit = torch.zeros(experts + 1, dtype=rows.dtype)
    fit[0] = 1.0
    level = torch.ones(experts + 1, dtype=rows.dtype)
    level[0] = 0.0

    def cost(at: Tensor) -> Tensor:
        logs = (design @ at).log_softmax(1)
        return -(weight[:, None] * targets * logs).sum() + (level @ at).square() / 2

    for _ in range(ROUNDS):
        p = (design @ fit).softmax(1)
        gradient = torch.einsum("n,nk,nkj->j", weight, p - targets, design) + level * (level @ fit)
        if float(gradient.abs().max()) < CLOSE:
            break
        middle = torch.einsum("nk,nkj->nj", p, design)
        curvature = torch.einsum("n,nk,nki,nkj->ij", weight, p, design, design)
        curvature = curvature - torch.einsum("n,ni,nj->ij", weight, middle, middle)
        curvature = curvature + level[:, None] * level + 1e-12 * torch.eye(experts + 1, dtype=rows.dtype)
        step, size, before = torch.linalg.solve(curvature, gradient), 1.0, cost(fit)
        while size > 1e-6 and not bool(cost(fit - size * step) <= before):
            size /= 2
        fit = fit - size * step
    return float(fit[0]), fit[1:]


def posterior(
    nll: Float[Tensor, "num experts"], priors: Sequence[float] | Tensor, temperature: float = 1.0
) -> Float[Tensor, "num experts"]:
    """p(i | x_0) = softmax_i(log λ_i - NLL_i / τ) (Bayes).

    Differences grow with the number of values of a sample, so that the answer is nearly always one expert:
    say the difference in bits per value beside it, or soften it by a τ that was fitted (`calibrated`).
    """
    prior = torch.as_tensor(priors, dtype=torch.float64, device=nll.device)
    return (prior.log() - nll.double() / temperature).softmax(1)


def bits_per_value(nll: Float[Tensor, "num experts"], values: int) -> Float[Tensor, "num experts"]:
    """How many bits per value each expert needs more than the best one."""
    return (nll - nll.min(1, keepdim=True).values) / (values * math.log(2))

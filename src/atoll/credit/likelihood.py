"""How likely a finished sample is under each expert, from its velocity errors at many noise levels."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
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


def posterior(
    nll: Float[Tensor, "num experts"], priors: Sequence[float] | Tensor, temperature: float = 1.0
) -> Float[Tensor, "num experts"]:
    """p(i | x_0) = softmax_i(log λ_i - NLL_i / τ) (Bayes).

    Differences grow with the number of values of a sample, so that the answer is nearly always one expert:
    say the difference in bits per value beside it, or soften it by τ.
    """
    prior = torch.as_tensor(priors, dtype=torch.float64, device=nll.device)
    return (prior.log() - nll.double() / temperature).softmax(1)


def bits_per_value(nll: Float[Tensor, "num experts"], values: int) -> Float[Tensor, "num experts"]:
    """How many bits per value each expert needs more than the best one."""
    return (nll - nll.min(1, keepdim=True).values) / (values * math.log(2))

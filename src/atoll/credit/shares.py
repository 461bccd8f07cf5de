"""Shares for display: where a sample came from. None is a payment, since each can be raised at will."""

import torch
from jaxtyping import Float
from torch import Tensor


def routing_shares(weights: Float[Tensor, "asked num experts"]) -> Float[Tensor, "num experts"]:
    """E_t[w_i] along a sample's way: p(i | x_t) on the average (DDM eq. 4).

    Provenance, not contribution: an expert that says what the base says has its share all the same.
    """
    return weights.mean(0)


def display_credit(
    weights: Float[Tensor, "num experts"], apart: Float[Tensor, "experts num *sample"]
) -> Float[Tensor, "num experts"]:
    """c_i = w_i ⟨d_i, v_N - v_b⟩ at one step, summing to ‖v_N - v_b‖²: Shapley's value with v_N as target.

    Needs no held-out data and costs nothing. Caveat: who exaggerates threefold takes most of it; scale it by
    audited values wherever money follows (`payment.royalties`).
    """
    parts = (weights.T.reshape(*weights.T.shape, *[1] * (apart.ndim - 2)) * apart).flatten(2)
    return torch.einsum("knd,nd->nk", parts, parts.sum(0))


def trajectory_shares(
    moved: Float[Tensor, "experts num *sample"], displacement: Float[Tensor, "num *sample"]
) -> Float[Tensor, "num experts"]:
    """A_i = ⟨∫ w_i v_i dt, Δx⟩ / ‖Δx‖²: how much of the way each expert went; signed, and sums to one.

    `moved` is each expert's part of the displacement Δx = Σ_i ∫ w_i v_i dt.
    """
    way = displacement.flatten(1)
    along = torch.einsum("knd,nd->nk", moved.flatten(2), way)
    return along / way.square().sum(1, keepdim=True).clamp(min=1e-38)

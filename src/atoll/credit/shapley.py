"""The exact worth of every part: Shapley values of a velocity ensemble whose base is always there.

The game: in a coalition S the weights of absent experts fall back to the base, v_S = v_b + Σ_{i∈S} w_i d_i
with d_i = v_i - v_b, and its worth is minus its loss against the target v* = noise - x_0 on held-out samples.
The loss is quadratic, so the game is a sum of games of one and two players, and the value of each expert
needs no coalition but the whole: linear in the number of experts, not exponential.

All values are rows, one for each sample, in units of the training loss (mean square over a sample's values);
their mean over held-out samples is what is paid. At guidance 1: guided velocities have no ground truth.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Weights = Float[Tensor, "batch experts"]
Differences = Float[Tensor, "experts batch *sample"]
Field = Float[Tensor, "batch *sample"]
Rows = Float[Tensor, "batch experts"]


def differences(velocities: Differences, base: Field) -> Differences:
    """d_i = v_i - v_b: what each expert says beyond the base."""
    return velocities - base[None]


def ensemble(weights: Weights, apart: Differences, base: Field) -> Field:
    """v_N = v_b + Σ_i w_i d_i, the coalition of all; weights that do not sum to one leave the rest to v_b."""
    return base + torch.einsum("bk,kb...->b...", weights, apart)


def shapley(weights: Weights, apart: Differences, base: Field, target: Field) -> Rows:
    """φ_i = -w_i ⟨d_i, (v_b - v*) + (v_N - v*)⟩, exactly Shapley's value (and Banzhaf's) of this game.

    From ‖e_b + Σ w_i d_i‖² = ‖e_b‖² + Σ_i (2 w_i ⟨e_b, d_i⟩ + w_i² ‖d_i‖²) + Σ_{i≠j} w_i w_j ⟨d_i, d_j⟩,
    where each pair shares its term equally (Shapley 1953, eq. 13). Caveat: an expert gains by overshooting
    along what others correct already, by at most E‖Σ_{j≠i} w_j d_j‖² / 4; `defence.clip` bounds it.
    """
    both = (base - target) + (ensemble(weights, apart, base) - target)
    return -weights * _inner(apart, both)


def gain(weights: Weights, apart: Differences, base: Field, target: Field) -> Float[Tensor, " batch"]:
    """E‖v_b - v*‖² - E‖v_N - v*‖²: what all experts are worth together, and what their values sum to."""
    whole = ensemble(weights, apart, base)
    return _square(base - target) - _square(whole - target)


def leave_one_out(weights: Weights, apart: Differences, base: Field, target: Field) -> Rows:
    """U(N) - U(N∖i) = ‖e_N - w_i d_i‖² - ‖e_N‖²: what the others would lose, the base in its place.

    Caveat: never pay by this alone. Two copies of one expert are worth nothing each, since the other stays.
    """
    error = ensemble(weights, apart, base) - target
    return weights.square() * _squares(apart) - 2 * weights * _inner(apart, error)


def redundancy(weights: Weights, apart: Differences) -> Float[Tensor, "batch experts experts"]:
    """w_i w_j ⟨d_i, d_j⟩: what two experts take from each other by saying the same (Grabisch 1997, eq. 5).

    Half of the negative interaction index: positive where one makes the other less needed. The diagonal is
    the square of an expert's own part.
    """
    parts = (weights.T.reshape(*weights.T.shape, *[1] * (apart.ndim - 2)) * apart).flatten(2)
    return torch.einsum("ibd,jbd->bij", parts, parts) / parts.shape[2]


def _inner(apart: Differences, field: Field) -> Rows:
    """⟨d_i, f⟩ of each sample, a mean over its values."""
    return torch.einsum("kbd,bd->bk", apart.flatten(2), field.flatten(1)) / apart[0, 0].numel()


def _square(field: Field) -> Float[Tensor, " batch"]:
    return field.square().flatten(1).mean(1)


def _squares(apart: Differences) -> Rows:
    return apart.square().flatten(2).mean(2).T

"""The exact worth of every part: Shapley values of a velocity ensemble whose base is always there.

The game: in a coalition S the weights of absent experts fall back to the base, v_S = v_b + Σ_{i∈S} w_i d_i
with d_i = v_i - v_b, and its worth is minus its loss against the target v* = noise - x_0 on held-out samples.
The loss is quadratic, so the game is a sum of games of one and two players, and the value of each expert
needs no coalition but the whole: one velocity of each expert, not one of each of 2^K coalitions.

All values are rows, one for each sample, in units of the training loss (mean square over a sample's values);
their mean over held-out samples is what is paid. At guidance 1: guided velocities have no ground truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

Weights = Float[Tensor, "batch experts"]
Differences = Float[Tensor, "experts batch *sample"]
Field = Float[Tensor, "batch *sample"]
Rows = Float[Tensor, "batch experts"]


@dataclass(frozen=True)
class Game:
    """Inner products of a batch, means over a sample's values: all that values depend on, without velocities.

    With e_b = v_b - v*, the error of the base.
    """

    weights: Weights
    """w_i: what the router gives each expert; what they leave of one is the base's."""
    along: Rows
    """⟨d_i, e_b⟩"""
    pairs: Float[Tensor, "batch experts experts"]
    """⟨d_i, d_j⟩"""
    base: Float[Tensor, " batch"]
    """‖e_b‖²: the loss of the base alone."""

    @classmethod
    def of(cls, weights: Weights, apart: Differences, base: Field, target: Field) -> "Game":
        """The game of differences d_i, the base's velocity and the target."""
        flat, error = apart.flatten(2), (base - target).flatten(1)
        values = error.shape[1]
        pairs = torch.einsum("ibd,jbd->bij", flat, flat) / values
        return cls(
            weights,
            torch.einsum("kbd,bd->bk", flat, error) / values,
            (pairs + pairs.mT) / 2,  # on some processors a product and its transpose are rounded differently
            error.square().mean(1),
        )

    @classmethod
    def joined(cls, games: Sequence["Game"]) -> "Game":
        """The rows of several batches, in double precision."""
        columns = [[getattr(game, field.name).double() for game in games] for field in fields(cls)]
        return cls(*(torch.cat(column) for column in columns))

    def scaled(self, factors: Rows) -> "Game":
        """The game in which expert i says v_b + f_i d_i."""
        pairs = self.pairs * factors[:, :, None] * factors[:, None]
        return replace(self, along=self.along * factors, pairs=pairs)

    def weighed(self, weights: Weights) -> "Game":
        """The game in which experts have other weights."""
        return replace(self, weights=weights)


def differences(velocities: Differences, base: Field) -> Differences:
    """d_i = v_i - v_b: what each expert says beyond the base."""
    return velocities - base[None]


def losses(game: Game) -> Float[Tensor, " batch"]:
    """‖e_N‖² = ‖e_b‖² + 2 Σ_i w_i ⟨d_i, e_b⟩ + Σ_ij w_i w_j ⟨d_i, d_j⟩: the loss of all together."""
    return game.base + 2 * (game.weights * game.along).sum(1) + redundancy(game).sum((1, 2))


def shapley(game: Game) -> Rows:
    """φ_i = -w_i ⟨d_i, (v_b - v*) + (v_N - v*)⟩, exactly Shapley's value (and Banzhaf's) of this game.

    From ‖e_b + Σ w_i d_i‖² = ‖e_b‖² + Σ_i (2 w_i ⟨e_b, d_i⟩ + w_i² ‖d_i‖²) + Σ_{i≠j} w_i w_j ⟨d_i, d_j⟩,
    where each pair shares its term equally (Shapley 1953, eq. 13). Caveat: an expert gains by overshooting
    along what others correct already, by at most E‖Σ_{j≠i} w_j d_j‖² / 4; `defence.clip` bounds it.
    """
    return -game.weights * (2 * game.along + _answers(game))


def gain(game: Game) -> Float[Tensor, " batch"]:
    """‖v_b - v*‖² - ‖v_N - v*‖²: what all experts are worth together, and what their values sum to."""
    return game.base - losses(game)


def leave_one_out(game: Game) -> Rows:
    """U(N) - U(N∖i) = ‖e_N - w_i d_i‖² - ‖e_N‖²: what the others would lose, the base in its place.

    Caveat: never pay by this alone. Two copies of one expert are worth nothing each, since the other stays.
    """
    own = game.weights.square() * game.pairs.diagonal(dim1=1, dim2=2)
    return own - 2 * game.weights * (game.along + _answers(game))


def left_out(game: Game) -> Rows:
    """What the ensemble loses without expert i where the others share its weight, w_j / (1 - w_i).

    The masked posterior is that of the remaining clusters, p(j | x_t, j≠i) (DDM eq. 4 without cluster i):
    what serving does when a part is gone. Caveat: near the data all weight is one expert's, and what the
    others say there may be anything; where nobody has weight left, the base answers.
    """
    whole, rows = losses(game), []
    for i in range(game.weights.shape[1]):
        weights = game.weights.clone()
        weights[:, i] = 0
        left = weights.sum(1, keepdim=True)
        share = game.weights.sum(1, keepdim=True) / left.clamp(min=1e-12)
        rows.append(losses(game.weighed(torch.where(left > 1e-12, weights * share, 0.0))) - whole)
    return torch.stack(rows, 1)


def replaced(
    game: Game, cluster: Int[Tensor, " batch"], owner: Sequence[int], priors: Float[Tensor, " experts"]
) -> Rows:
    """‖v_{-i} - v*‖² - ‖v_i - v*‖² on samples of expert i's own cluster, zero elsewhere; the base cancels.

    With v_{-i} = Σ_{j≠i} λ_j v_j / (1 - λ_i), the others by their shares (DDM eq. 5 at t = 1 without i). Near
    the noise it says how far from the rest a cluster lies that the expert knows, on which a Fréchet distance
    depends that leaves the part out. Caveat: it says little of how well details are known, and the others can
    lower it by saying what the expert says.
    """
    rows, alone = [], game.base[:, None] + 2 * game.along + game.pairs.diagonal(dim1=1, dim2=2)
    for i, home in enumerate(owner):
        others = priors.to(game.pairs.dtype).clone()
        others[i] = 0
        others = others / others.sum().clamp(min=1e-12)
        together = game.base + 2 * game.along @ others
        together = together + torch.einsum("i,bij,j->b", others, game.pairs, others)
        rows.append(torch.where(cluster == home, together - alone[:, i], 0.0))
    return torch.stack(rows, 1)


def redundancy(game: Game) -> Float[Tensor, "batch experts experts"]:
    """w_i w_j ⟨d_i, d_j⟩: what two experts take from each other by saying the same (Grabisch 1997, eq. 5).

    Half of the negative interaction index: positive where one makes the other less needed. The diagonal is
    the square of an expert's own part.
    """
    return game.weights[:, :, None] * game.weights[:, None] * game.pairs


def _answers(game: Game) -> Rows:
    """⟨d_i, Σ_j w_j d_j⟩: along what all say together."""
    return torch.einsum("bij,bj->bi", game.pairs, game.weights)

"""What keeps values honest: bounds on what a part may say, copies, and numbers that do not fit together."""

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from atoll.credit.shapley import Game

CLIP = 1.5
"""How much farther from the base than usual an expert may go; 1 would cost honest ones."""
SAME = 0.98
"""Cosine of what two parts say beyond the base above which they are one part."""
ALARM = 1.3
"""How many times the usual ratio of value to leave-one-out means that somebody should look."""


def clip(
    game: Game,
    cluster: Int[Tensor, " batch"],
    stratum: Int[Tensor, " batch"] | None = None,
    factor: float = CLIP,
    owner: Sequence[int] | None = None,
) -> Game:
    """The game with each ‖d_i‖ at most `factor` times its median over samples of the expert's own cluster.

    Bounds overshooting along what others correct already. With `stratum` medians are of samples at about the
    same time, since all experts go farther from the base at some times than at others. An expert whose
    cluster has no sample there is measured by the median of all experts over theirs. `owner` is the cluster
    of each, by default that of its own number.
    """
    norms = game.pairs.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()  # (batch, experts)
    strata = torch.zeros_like(cluster) if stratum is None else stratum
    factors = torch.ones_like(norms)
    for index in sorted(set(strata.tolist())):
        rows = strata == index
        limits = factor * _usual(norms[rows], cluster[rows], owner or range(norms.shape[1]))
        factors[rows] = (limits / norms[rows].clamp(min=1e-38)).clamp(max=1.0)
    return game.scaled(factors)


def _usual(
    norms: Float[Tensor, "batch experts"], cluster: Int[Tensor, " batch"], owner: Sequence[int]
) -> Tensor:
    """The median of each expert over its own cluster."""
    own = [norms[cluster == home, k] for k, home in enumerate(owner)]
    known = [part.median() for part in own if len(part)]
    usual = torch.stack(known).median() if known else norms.median()
    return torch.stack([part.median() if len(part) else usual for part in own])


def likeness(game: Game) -> Float[Tensor, "experts experts"]:
    """Cosine of v_i - v_b and v_j - v_b, where the one is at home or where the other is: the larger of both.

    Rows count by the weight of i, then by that of j: elsewhere a copy may say anything without losing credit,
    to look different. With equal weights, as on public noise, it is the plain cosine over all rows.
    """
    weights, pairs = game.weights.double(), game.pairs.double()
    inner = torch.einsum("bi,bij->ij", weights, pairs)  # of i and j, where i is at home
    own = inner.diagonal()
    other = torch.einsum("bi,bjj->ij", weights, pairs)  # of j with itself, where i is at home
    cosine = inner / (own[:, None] * other).clamp(min=1e-300).sqrt()
    return torch.maximum(cosine, cosine.T)


def copies(alike: Float[Tensor, "experts experts"], same: float = SAME) -> list[tuple[int, int]]:
    """Pairs of parts that say the same: the later one is refused, or shares the earlier one's weight."""
    return [(i, j) for j in range(len(alike)) for i in range(j) if float(alike[i, j]) > same]


def registered(
    posterior: Float[Tensor, "batch clusters"], owner: Int[Tensor, " parts"], refused: Collection[int] = ()
) -> Float[Tensor, "batch parts"]:
    """Weights of parts by the clusters that they were registered for: those of one cluster share its weight.

    `owner` is the cluster of each part. Whoever comes twice, as a clone, a copy or under another name, has no
    more weight than once; a part that is refused, as a copy is, has none.
    """
    there = torch.tensor([part not in refused for part in range(len(owner))], device=posterior.device)
    counts = torch.bincount(owner[there], minlength=posterior.shape[1]).clamp(min=1)
    return posterior[:, owner] * there / counts[owner]


def at_home(
    game: Game, cluster: Int[Tensor, " batch"], owner: Int[Tensor, " parts"], refused: Collection[int] = ()
) -> Game:
    """The game in which the cluster of every sample is known: all weight is for whom it was registered.

    What a part is paid for. Alone in its cluster its value is ‖v_b - v*‖² - ‖v_i - v*‖² there and zero
    elsewhere, a proper score (Gneiting & Raftery 2007, §4): the mean of what it knows pays best, whatever
    others say, and nothing that others say changes it. Summed over parts it is the gain of an ensemble that
    asks one expert for each sample, as ancestral sampling does.
    """
    clusters = 1 + max(int(cluster.max()), int(owner.max()))
    known = torch.nn.functional.one_hot(cluster, clusters).to(game.weights.dtype)
    return game.weighed(registered(known, owner, refused))


def ratios(
    values: Float[Tensor, " experts"], without: Float[Tensor, " experts"]
) -> Float[Tensor, " experts"]:
    """Value over what would be missed, as a multiple of the median part's; 0 where there is no value.

    A multiple, since honest parts are the more redundant the less the base knows: about 1 against a network
    on all data, 1.5 against two moments. Without anything to be missed for it is infinite. Caveat:
    for somebody to look and not to punish by: whoever overshoots makes others look dispensable.
    """
    each = torch.where(values > 0, values / without.clamp(min=0), 0.0)
    usual = each[values > 0].median() if bool((values > 0).any()) else torch.ones(())
    return each / usual.clamp(min=1e-38).clamp(max=1e30)


def alarms(
    values: Float[Tensor, " experts"], without: Float[Tensor, " experts"], ratio: float = ALARM
) -> Bool[Tensor, " experts"]:
    """Whether a part is paid for more than it would be missed for: clones and overshooting."""
    return ratios(values, without) > ratio

"""What parts are worth to a distance that knows means and covariances alone: no mixture need be sampled.

Ancestral sampling draws from a mixture of what parts draw alone, P_S = Σ_{k∈S} λ_k P_k / Σ_{k∈S} λ_k for
the parts S that are there, the rest renormalised. Moments of a mixture are those of its parts, so samples
of each part give the distance of every coalition, at the cost of K small sets and no more.

Not what parts are paid by: a distance loses most by the part that lies farthest from the rest, however well
it draws, and whoever hands in samples can choose them. The auditor draws, from the part's own network.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Distance = Callable[[Tensor, Tensor], float]
"""Of features with this mean and this covariance, from the data."""
EXACT = 10
"""Parts up to which all coalitions are looked at; beyond, orders are drawn."""
ORDERS = 64
"""Orders that are drawn, each with its reverse."""


@dataclass(frozen=True)
class Moments:
    """Means and covariances of what every part draws, in double precision."""

    means: Float[Tensor, "parts features"]
    covariances: Float[Tensor, "parts features features"]

    @classmethod
    def of(cls, rows: Float[Tensor, "parts num features"]) -> "Moments":
        """Those of the very rows, divided by their number: of a mixture of parts they are then its own."""
        exact = rows.double()
        means = exact.mean(1)
        apart = exact - means[:, None]
        return cls(means, torch.einsum("kni,knj->kij", apart, apart) / rows.shape[1])

    def mixed(self, weights: Float[Tensor, " parts"]) -> tuple[Tensor, Tensor]:
        """Mean m = Σ w_k m_k and covariance Σ_k w_k (C_k + (m_k - m) (m_k - m)ᵀ) (total covariance)."""
        weights = weights.double()
        mean = weights @ self.means
        apart = self.means - mean
        within = torch.einsum("k,kij->ij", weights, self.covariances)
        return mean, within + torch.einsum("k,ki,kj->ij", weights, apart, apart)


def distance_of(
    distance: Distance, parts: Moments, priors: Float[Tensor, " parts"], there: Bool[Tensor, " parts"]
) -> float:
    """The distance of a coalition's mixture, its shares renormalised."""
    weights = torch.where(there, priors.double(), 0.0)
    return distance(*parts.mixed(weights / weights.sum()))


def left_out(distance: Distance, parts: Moments, priors: Float[Tensor, " parts"]) -> Float[Tensor, " parts"]:
    """D(N∖k) - D(N): by how much the distance grows where part k is left out and the rest share its weight.

    Below zero the ensemble would be nearer to the data without it. Caveat: two copies of one part are worth
    nothing each, as of every leave-one-out.
    """
    everybody = torch.ones(len(priors), dtype=torch.bool)
    whole, lost = distance_of(distance, parts, priors, everybody), []
    for k in range(len(priors)):
        others = everybody.clone()
        others[k] = False
        lost.append(distance_of(distance, parts, priors, others) - whole)
    return torch.tensor(lost, dtype=torch.float64)


def shapley(
    distance: Distance,
    parts: Moments,
    priors: Float[Tensor, " parts"],
    nothing: float,
    source: torch.Generator | None = None,
) -> Float[Tensor, " parts"]:
    """Σ_{S∌k} |S|! (K-|S|-1)! / K! [D(S) - D(S∪k)], in units of the distance (Shapley 1953, eq. 13).

    They sum to `nothing` - D(N), where `nothing` is the distance of the empty coalition. Over all coalitions
    up to EXACT parts; beyond, over ORDERS random orders and their reverses (Castro et al. 2009; Mitchell
    et al. 2022, §4.1), unbiased and with the same sum. Caveat: not split-neutral. A clone that shares its
    twin's weight is the whole of it in coalitions where the twin is not, so two are not worth what one was.
    """
    count = len(priors)
    known: dict[tuple[int, ...], float] = {(): nothing}

    def at(coalition: tuple[int, ...]) -> float:
        if coalition not in known:
            there = torch.zeros(count, dtype=torch.bool)
            there[list(coalition)] = True
            known[coalition] = distance_of(distance, parts, priors, there)
        return known[coalition]

    values = torch.zeros(count, dtype=torch.float64)
    if count <= EXACT:
        for size in range(count):
            share = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for coalition in itertools.combinations(range(count), size):
                for k in set(range(count)) - set(coalition):
                    values[k] += share * (at(coalition) - at(tuple(sorted((*coalition, k)))))
        return values
    for _ in range(ORDERS):
        order = torch.randperm(count, generator=source).tolist()
        for each in (order, order[::-1]):
            for place, k in enumerate(each):
                before = tuple(sorted(each[:place]))
                values[k] += at(before) - at(tuple(sorted(each[: place + 1])))
    return values / (2 * ORDERS)

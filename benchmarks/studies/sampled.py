"""The ensemble really sampled, with all parts and without each: the truth that values are held against.

Every ensemble draws its own samples ancestrally, from seeds that no estimate has seen; without a part the
shares of the others are renormalised, as serving without it does.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll.config import EvaluateConfig
from atoll.credit import mixtures
from atoll.credit.estimate import Estimate, jackknife
from atoll.credit.mixtures import Moments
from atoll.evaluate.distances import Frechet
from atoll.evaluate.features import open_space
from atoll.evaluate.measure import Judge
from atoll.evaluate.routing import correlation
from atoll.runs import Run
from atoll.sampling.sampler import Sampler

SPACES = ("classifier", "pixels")
SEED = 1_000
"""Of the truth; estimates draw from seeds below."""
GROUPS = 8
RESAMPLES = 200
Tensors = dict[str, Tensor]
Kept = Callable[[Run, str, Callable[[], Tensors]], Tensors]
"""Tensors of a run by name, made when they are first asked for."""


def ensembles(run: Run, sampler: Sampler, num: int, kept: Kept, how: Mapping[str, Any]) -> Tensor:
    """(1 + experts, num, …): samples of all parts together, then of all but each, one file for each."""
    experts = range(len(sampler.ensemble.experts))
    drawn = []
    for place in range(1 + len(experts)):
        others = tuple(k for k in experts if k != place - 1)
        asked = {"strategy": "ancestral", "experts": others, "batch": 64, "seed": SEED + place, **how}

        def make(asked: dict[str, Any] = asked) -> Tensors:
            return {"x_0": sampler.sample(num, **asked).half()}

        drawn.append(kept(run, f"without-{place - 1}-{num}" if place else f"with-all-{num}", make)["x_0"])
    return torch.stack(drawn)


def features(run: Run, sets: Mapping[str, Tensor], unseen: Tensor) -> Tensors:
    """Sets (parts, num, …) of samples and the unseen ones as distances see them."""
    judge = Judge(run, EvaluateConfig())
    tensors: Tensors = {}
    for name in SPACES:
        space = open_space(name, judge.real, judge.folder)
        tensors |= {
            f"{name} {key}": torch.stack([space.of(x.float()) for x in x_0]) for key, x_0 in sets.items()
        }
        tensors[f"{name} unseen"] = space.of(unseen)
    return tensors


class Truth(NamedTuple):
    """The distance of all parts, what it grows by without each, and that with errors of sampling."""

    whole: float
    lost: Tensor
    sure: Estimate


def truth(rows: Tensor, reference: Tensor) -> Truth:
    """What ensembles that were really sampled say."""
    to = Frechet(reference)

    def change(some: Tensor) -> Tensor:
        distances = torch.tensor([to(each[some]) for each in rows], dtype=torch.float64)
        return distances[1:] - distances[0]

    every = torch.arange(rows.shape[1])
    return Truth(to(rows[0]), change(every), jackknife(len(every), change, GROUPS))


def reliability(rows: Tensor, reference: Tensor) -> float | None:
    """The rank correlation of the truth by one half of the samples with that by the other."""
    half = rows.shape[1] // 2
    to = Frechet(reference)
    each = [[to(one) - to(part[0]) for one in part[1:]] for part in (rows[:, :half], rows[:, half:])]
    return correlation(*each)


def foretold(rows: Tensor, reference: Tensor, priors: Tensor) -> Tensors:
    """What samples that each part drew alone say of the same: left out, and Shapley's value."""
    to, num = Frechet(reference), rows.shape[1]
    nothing = to.of_moments(to.mean, torch.zeros_like(to.covariance))
    lost = jackknife(
        num, lambda some: mixtures.left_out(to.of_moments, Moments.of(rows[:, some]), priors), GROUPS
    ).mean
    value = mixtures.shapley(to.of_moments, Moments.of(rows), priors, nothing)
    return {"lost, from each part's own samples": lost, "Shapley in the distance, from the same": value}


def interval(estimate: Estimate, values: Tensor) -> list[float]:
    """Where the rank correlation with the truth lies 95 times in 100, by the errors of the truth alone."""
    source = torch.Generator().manual_seed(0)
    drawn = [
        correlation(
            values.tolist(),
            (estimate.mean + estimate.error * torch.randn(len(values), generator=source).double()).tolist(),
        )
        or 0.0
        for _ in range(RESAMPLES)
    ]
    return torch.tensor(drawn).quantile(torch.tensor([0.025, 0.975])).tolist()

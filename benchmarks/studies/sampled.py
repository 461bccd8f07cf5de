"""The ensemble really sampled, with all parts and without each: the truth that values are held against.

Every ensemble draws its own samples ancestrally, from seeds that no estimate has seen; without a part the
shares of the others are renormalised, as serving without it does.
"""

from collections.abc import Callable, Mapping
from functools import partial
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
from atoll.sampling import parts as parting
from atoll.sampling.sampler import Sampler

SPACES = ("classifier", "pixels")
SEED = 1_000
"""Of the truth; estimates draw from seeds below."""
GROUPS = 8
RESAMPLES = 200
Tensors = dict[str, Tensor]
Kept = Callable[[Run, str, Callable[[], Tensors]], Tensors]
"""Tensors of a run by name, made when they are first asked for."""


def ensembles(
    run: Run, sampler: Sampler, num: int, kept: Kept, how: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """(1 + experts, num, …): samples of all parts, then of all but each; and who made each of them."""
    experts = range(len(sampler.ensemble.experts))
    drawn, makers = list[Tensor](), list[Tensor]()
    for place in range(1 + len(experts)):
        others = tuple(k for k in experts if k != place - 1)
        asked = {"strategy": "ancestral", "experts": others, "batch": 64, "seed": SEED + place, **how}
        make = partial(_half, sampler, num, asked)
        drawn.append(kept(run, f"without-{place - 1}-{num}" if place else f"with-all-{num}", make)["x_0"])
        request = sampler.request(num, **asked)
        makers.append(torch.tensor(parting.experts(sampler.ensemble, request, range(num))))
    return torch.stack(drawn), torch.stack(makers)


def _half(sampler: Sampler, num: int, asked: Mapping[str, Any]) -> Tensors:
    return {"x_0": sampler.sample(num, **asked).half()}


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


def truth(rows: Tensor, makers: Tensor, priors: Tensor, reference: Tensor) -> Truth:
    """What ensembles that were really sampled say."""
    changes = partial(_changes, Frechet(reference), rows, makers, priors)
    every = torch.arange(rows.shape[1])
    distances = changes(every)
    return Truth(
        float(distances[0]), distances[1:], jackknife(len(every), lambda some: changes(some)[1:], GROUPS)
    )


def _changes(to: Frechet, rows: Tensor, makers: Tensor, priors: Tensor, some: Tensor) -> Tensor:
    """The distance of the first set, and how much larger those of the others are.

    How often each part happened to be drawn does not count: its samples together weigh as its share says
    (post-stratification, Cochran 1977, §5A.9). By luck alone distances of 250 samples differ by 25.
    """
    distances = [
        to.of_moments(*weighed(each[some].double(), who[some], priors))
        for each, who in zip(rows, makers, strict=True)
    ]
    return torch.tensor([distances[0], *(one - distances[0] for one in distances[1:])], dtype=torch.float64)


def weighed(rows: Tensor, makers: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of rows whose makers have their share of all who are there."""
    counts = torch.bincount(makers, minlength=len(priors)).double()
    share = torch.where(counts > 0, priors.double(), 0.0)
    weight = (share / share.sum() / counts.clamp(min=1))[makers]
    mean = weight @ rows
    return mean, torch.einsum("n,ni,nj->ij", weight, rows - mean, rows - mean)


def reliability(rows: Tensor, makers: Tensor, priors: Tensor, reference: Tensor) -> float | None:
    """The rank correlation of the truth by one half of the samples with that by the other."""
    half = rows.shape[1] // 2
    changes = partial(_changes, Frechet(reference), rows, makers, priors)
    parts = torch.arange(half), torch.arange(half, rows.shape[1])
    return correlation(*(changes(some)[1:].tolist() for some in parts))


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

"""A request as a stream of batches: which samples are made together, and by whom where that is fixed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from atoll.flow import mixture
from atoll.models.conditions import Condition
from atoll.sampling import routing
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.request import Request

WINDOW = 65_536
"""Samples whose experts are drawn ahead, so that each expert is loaded once for all of its own among them."""
LOOKED_AT = 64
"""Samples by which `auto` decides."""


@dataclass(frozen=True)
class Part:
    """Some of the samples: their numbers, what they are told, and their expert if it is fixed."""

    indices: Sequence[int]
    condition: Condition
    expert: int | None = None


def resolve(ensemble: Ensemble, request: Request) -> tuple[str, float | None]:
    """What `auto` means here, and how sure the cluster is at t = 1.

    Greedy top-1 sends every sample to the cluster that wins at t = 1. That is right where the condition
    tells the cluster, and wrong where it does not: there ancestral sampling is exact and as cheap.
    """
    if request.settings.strategy != "auto":
        return request.settings.strategy, None
    if request.settings.protect:
        return "full", None
    if ensemble.kind == "none" or ensemble.router is None or len(ensemble.experts) == 1:
        return "ancestral", None
    few = range(min(request.num, LOOKED_AT))
    certainty = routing.certainty(_at_noise(ensemble, request, few))
    return ("top-1" if certainty >= routing.SURE else "ancestral"), certainty


def parts(ensemble: Ensemble, request: Request, strategy: str) -> Iterator[Part]:
    """What is made together, in batches; by expert where each sample keeps one, to load each once.

    Otherwise as many as give every expert a full batch, if they spread evenly: eight experts that are
    asked about eight samples each cost more than one that is asked about 64.
    """
    settings = request.settings
    if keeps_expert(ensemble, strategy):
        yield from _by_expert(ensemble, request)
        return
    serving = len(ensemble.experts) if settings.experts is None else len(set(settings.experts))
    for some in batches(range(request.num), settings.batch * serving):
        yield Part(some, request.told(some, ensemble))


def _by_expert(ensemble: Ensemble, request: Request) -> Iterator[Part]:
    batch = request.settings.batch
    for window in batches(range(request.num), max(WINDOW // batch, 1) * batch):
        owners = experts(ensemble, request, window)
        for expert in sorted(set(owners)):
            own = [index for index, k in zip(window, owners, strict=True) if k == expert]
            for some in batches(own, batch):
                yield Part(some, request.told(some, ensemble), expert)


def keeps_expert(ensemble: Ensemble, strategy: str) -> bool:
    """Whether each sample has one expert from noise to data."""
    return len(ensemble.experts) == 1 or strategy in ("ancestral", "oracle")


def experts(ensemble: Ensemble, request: Request, window: Sequence[int]) -> list[int]:
    """The expert of each of these samples, where each keeps one."""
    if len(ensemble.experts) == 1:
        return [0] * len(window)
    if request.clusters is not None:
        return [request.clusters[index] for index in window]
    drawn = [_ancestors(ensemble, request, some) for some in batches(window, request.settings.batch)]
    return [expert for some in drawn for expert in some.tolist()]


def entry(ensemble: Ensemble, request: Request) -> float:
    """The time at which the samples of a request enter the networks' flow."""
    return 1.0 if ensemble.entry is None else ensemble.entry.at(request.settings)


def entered(
    ensemble: Ensemble,
    request: Request,
    indices: Sequence[int],
    fixed: Sequence[int | None],
) -> Float[Tensor, "batch *sample"]:
    """Where some samples enter: their noise, or where the moments of their clusters have it flow.

    A sample that keeps no expert is of a cluster all the same: which one is drawn as by ancestral sampling.
    """
    noise = request.noise(indices, ensemble.shape).to(ensemble.device, non_blocking=True)
    begin = entry(ensemble, request)
    if begin == 1:
        return noise
    assert ensemble.entry is not None
    kept = [expert for expert in fixed if expert is not None]
    owners = kept if len(kept) == len(indices) else experts(ensemble, request, indices)
    return ensemble.entry.points(noise, owners, begin, request.told(indices, ensemble))


def batches(indices: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """These numbers, so many at a time."""
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def _ancestors(ensemble: Ensemble, request: Request, indices: Sequence[int]) -> Int[Tensor, " batch"]:
    """One expert per sample, drawn from the prior, or given the condition."""
    uniform = request.uniform(indices, "ancestor").to(ensemble.device)
    return mixture.draw(_at_noise(ensemble, request, indices), uniform)


def _at_noise(ensemble: Ensemble, request: Request, indices: Sequence[int]) -> Tensor:
    """p(k | condition): the prior, the shares of the class, or what the router says at t = 1.

    There the noise says nothing, so that only a router that was told a text knows more than counts do.
    """
    condition = request.told(indices, ensemble)
    if condition is None:
        return request.served(ensemble.priors.expand(len(indices), -1))
    if ensemble.by_class is not None and isinstance(condition, Tensor):
        return request.served(ensemble.by_class[condition])
    noise = request.noise(indices, ensemble.shape).to(ensemble.device)
    end = torch.ones(len(noise), device=ensemble.device)
    return request.served(ensemble.posterior(noise, end, condition))

"""Router and experts by time: who knows what at which noise level, on real samples."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atoll.data.store import Batch, Reader
from atoll.flow import draws, mixture, path
from atoll.models.conditions import Condition, TextCondition
from atoll.models.ensemble import Ensemble
from atoll.runs import Run

TIMES = tuple((index + 0.5) / 10 for index in range(10))
"""The middles of ten equal parts of the time."""
CONFIDENCES = 10
"""Bins of the calibration error."""
ROWS = 250


@torch.inference_mode()
def examine(
    ensemble: Ensemble, run: Run, num: int, *, experts: bool = True, times: Sequence[float] = TIMES
) -> dict[str, Any]:
    """Router and experts on so many real samples at each time, drawn with the clusters' natural shares."""
    batch = _drawn(run, num)
    noise = draws.training_draws(run.config.seed, "examined", 0, batch.x_0.shape, 0.0).noise
    return {
        "num": num,
        "clusters": len(ensemble.experts),
        "times": [_at(ensemble, batch, noise, t, experts) for t in times],
    }


def _drawn(run: Run, num: int) -> Batch:
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    with contextlib.closing(Reader(clusters, num, run.config.seed + 1).batches()) as batches:
        return next(batches)


def _told(ensemble: Ensemble, batch: Batch) -> Condition:
    if ensemble.kind == "class" and batch.label is not None:
        return torch.where(batch.label < 0, ensemble.classes, batch.label)
    if ensemble.kind == "text" and batch.text is not None:
        return TextCondition(batch.text.tokens, batch.text.mask, batch.text.pooled)
    return None


def _at(ensemble: Ensemble, batch: Batch, noise: Tensor, t: float, experts: bool) -> dict[str, Any]:
    """One time: rows of all samples are gathered part by part, then summed up."""
    told = _told(ensemble, batch)
    posteriors, errors, apart = [], [], []
    for start in range(0, len(noise), ROWS):
        some = slice(start, start + ROWS)
        x_0, e = batch.x_0[some].to(ensemble.device), noise[some].to(ensemble.device)
        times = torch.full((len(x_0),), t, device=ensemble.device)
        x_t = path.point(x_0, e, times)
        condition = None if told is None else told[some].to(ensemble.device)
        posterior = ensemble.posterior(x_t, times, condition)
        posteriors.append(posterior.cpu())
        if experts:
            v = torch.stack(
                [ensemble.experts[k](x_t, times, condition) for k in range(len(ensemble.experts))]
            )
            errors.append(_errors(v, posterior, e - x_0).cpu())
            apart.append(mixture.disagreement(posterior, v).cpu())
    found = {"t": t, **router_facts(torch.cat(posteriors), batch.cluster)}
    if experts:
        clusters = len(ensemble.experts)
        found |= expert_facts(torch.cat(errors), batch.cluster, clusters)
        found["disagreement"] = float(torch.cat(apart).double().mean())
    return found


def _errors(v: Tensor, posterior: Tensor, target: Tensor) -> Tensor:
    """(rows, experts + 3): the loss of each expert, then of full, top-1 and top-2."""
    mixed = [
        mixture.combine(weights, v)
        for weights in (posterior, mixture.top_k(posterior, 1), mixture.top_k(posterior, 2))
    ]
    every = torch.cat([v, torch.stack(mixed)])
    return (every - target).square().flatten(2).mean(2).T


def router_facts(posterior: Tensor, cluster: Tensor) -> dict[str, Any]:
    """Accuracy, expected calibration error (Guo et al. 2017, eq. 3), entropy as a share of its maximum."""
    p = posterior.double()
    confidence, choice = p.max(1)
    right = (choice == cluster).double()
    bins = (confidence * CONFIDENCES).long().clamp(max=CONFIDENCES - 1)
    gap = torch.zeros(CONFIDENCES, dtype=torch.float64).index_add_(0, bins, right - confidence)
    entropy = -torch.special.xlogy(p, p).sum(1).mean() / math.log(max(2, p.shape[1]))
    own = p.gather(1, cluster[:, None])[:, 0]
    by_cluster = [own[cluster == k] for k in range(p.shape[1])]
    return {
        "accuracy": float(right.mean()),
        "calibration": float(gap.abs().sum() / len(p)),
        "entropy": float(entropy),
        "cross_entropy": float(-own.clamp(min=1e-12).log().mean()),
        "own_probability": [float(rows.mean()) if len(rows) else None for rows in by_cluster],
    }


def expert_facts(errors: Tensor, cluster: Tensor, clusters: int) -> dict[str, Any]:
    """The velocity loss of each expert on its own and on others' clusters, and that of mixtures of them."""
    errors = errors.double()
    table = torch.full((clusters, clusters), math.nan, dtype=torch.float64)
    for k in range(clusters):
        rows = errors[cluster == k, :clusters]
        if len(rows):
            table[:, k] = rows.mean(0)
    own = errors[torch.arange(len(errors)), cluster]
    others = (errors[:, :clusters].sum(1) - own) / max(1, clusters - 1)
    full, first, second = errors[:, clusters:].mean(0).tolist()
    return {
        "own": float(own.mean()),
        "others": float(others.mean()) if clusters > 1 else None,
        "full": full,
        "top-1": first,
        "top-2": second,
        "greedy": first - full,
        "table": [[None if math.isnan(value) else value for value in row] for row in table.tolist()],
    }


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's: whether the one is large where the other is; nothing where one of them never changes."""
    ranks = torch.stack([_ranks(x), _ranks(y)])
    if len(x) < 3 or bool((ranks.std(1) == 0).any()):
        return None
    return float(ranks.corrcoef()[0, 1])


def _ranks(values: Sequence[float]) -> Tensor:
    """Ranks, the mean of them where values are equal."""
    tensor = torch.tensor(values, dtype=torch.float64)
    below = (tensor[:, None] > tensor[None]).sum(1)
    equal = (tensor[:, None] == tensor[None]).sum(1)
    return below.double() + (equal - 1).double() / 2


def predicts(examined: Sequence[Mapping[str, Any]]) -> float | None:
    """How well the router's entropy predicts what top-1 loses, over all times of all that were examined."""
    rows = [row for each in examined for row in each["times"] if "greedy" in row]
    return correlation([row["entropy"] for row in rows], [row["greedy"] for row in rows])

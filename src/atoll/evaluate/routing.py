"""Router and experts by time: who knows what at which noise level, on real samples."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atoll.data.store import MEMORY, Batch, Reader
from atoll.evaluate.intervals import Measured, bootstrap, mean_of_rows
from atoll.flow import draws, mixture, path
from atoll.models.conditions import Condition, TextCondition
from atoll.runs import Run
from atoll.sampling.ensemble import Ensemble

TIMES = tuple((index + 0.5) / 10 for index in range(10))
"""The middles of ten equal parts of the time."""
CONFIDENCES = 10
"""Bins of the calibration error."""
ROWS = 250
READ_ROWS = 2**18
"""Of larger data so many rows are read at once, and samples are drawn from them."""
RESAMPLES = 200
"""Behind the interval of a correlation."""


@torch.inference_mode()
def examine(
    ensemble: Ensemble,
    run: Run,
    num: int,
    *,
    experts: bool = True,
    times: Sequence[float] = TIMES,
    resamples: int = 0,
) -> dict[str, Any]:
    """Router and experts on so many real samples at each time, drawn with the clusters' natural shares.

    Of fewer samples than are asked for each is taken once: intervals of repeated ones would be too narrow.
    With `resamples` every number has its bootstrap interval under the same name in `intervals`.
    """
    batch = _drawn(run, num)
    noise = draws.training_draws(run.config.seed, "examined", 0, batch.x_0.shape, 0.0).noise
    return {
        "num": len(batch.x_0),
        "clusters": len(ensemble.experts),
        "times": [_at(ensemble, batch, noise, t, experts, resamples) for t in times],
    }


def _drawn(run: Run, num: int) -> Batch:
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    contents = clusters[0].contents
    num = min(num, sum(cluster.contents.rows for cluster in clusters))
    memory = min(MEMORY, READ_ROWS * max(1, contents.bytes // max(1, contents.rows)))
    reader = Reader(clusters, num, run.config.seed + 1, memory=memory)
    with contextlib.closing(reader.batches()) as batches:
        return next(batches)


def told(ensemble: Ensemble, batch: Batch) -> Condition:
    """What experts are told of real samples: their class, their caption, or nothing."""
    if ensemble.kind == "class" and batch.label is not None:
        return torch.where(batch.label < 0, ensemble.classes, batch.label)
    if ensemble.kind == "text" and batch.text is not None:
        return TextCondition(batch.text.tokens, batch.text.mask, batch.text.pooled)
    return None


def _at(
    ensemble: Ensemble, batch: Batch, noise: Tensor, t: float, experts: bool, resamples: int = 0
) -> dict[str, Any]:
    """One time: rows of all samples are gathered part by part, then summed up."""
    conditions = told(ensemble, batch)
    posteriors, errors, apart = [], [], []
    for start in range(0, len(noise), ROWS):
        some = slice(start, start + ROWS)
        x_0, e = batch.x_0[some].to(ensemble.device), noise[some].to(ensemble.device)
        times = torch.full((len(x_0),), t, device=ensemble.device)
        x_t = path.point(x_0, e, times)
        condition = None if conditions is None else conditions[some].to(ensemble.device)
        posterior = ensemble.posterior(x_t, times, condition)
        posteriors.append(posterior.cpu())
        if experts:
            v = torch.stack(
                [ensemble.experts[k](x_t, times, condition) for k in range(len(ensemble.experts))]
            )
            errors.append(_errors(v, posterior, e - x_0).cpu())
            apart.append(mixture.combine(posterior, mixture.of_everyone(v)).disagreement.cpu())
    told_router, rows = torch.cat(posteriors), {"cluster": batch.cluster}
    facts = {"t": t, **router_facts(told_router, batch.cluster)}
    if experts:
        rows |= {"errors": torch.cat(errors), "apart": torch.cat(apart)}
        facts |= expert_facts(rows["errors"], batch.cluster, len(ensemble.experts))
        facts["disagreement"] = float(rows["apart"].double().mean())
    if resamples:
        facts["intervals"] = _intervals(told_router, rows, resamples)
    return facts


def _intervals(posterior: Tensor, rows: Mapping[str, Tensor], resamples: int) -> dict[str, list[float]]:
    """Low and high of every number at one time, by samples drawn again."""
    cluster, clusters = rows["cluster"], posterior.shape[1]
    own = posterior.double().gather(1, cluster[:, None])[:, 0]
    each = {
        "accuracy": (posterior.argmax(1) == cluster).double(),
        "entropy": _entropies(posterior),
        "cross_entropy": -own.clamp(min=1e-12).log(),
    }
    if "errors" in rows:
        errors = rows["errors"].double()
        mine = errors[torch.arange(len(errors)), cluster]
        full, first, second = errors[:, clusters:].T
        each |= {
            "own": mine,
            "others": (errors[:, :clusters].sum(1) - mine) / max(1, clusters - 1),
            "full": full,
            "top-1": first,
            "top-2": second,
            "greedy": first - full,
            "disagreement": rows["apart"].double(),
        }
    intervals = {name: mean_of_rows(values, resamples) for name, values in each.items()}
    intervals["calibration"] = bootstrap(
        len(cluster), lambda chosen: calibration(posterior[chosen], cluster[chosen]), resamples
    )
    return {name: [measured.low, measured.high] for name, measured in intervals.items()}


def _errors(v: Tensor, posterior: Tensor, target: Tensor) -> Tensor:
    """(rows, experts + 3): the loss of each expert, then of full, top-1 and top-2."""
    mixed = [
        mixture.combine(weights, mixture.of_everyone(v)).velocity
        for weights in (posterior, mixture.top_k(posterior, 1), mixture.top_k(posterior, 2))
    ]
    every = torch.cat([v, torch.stack(mixed)])
    return (every - target).square().flatten(2).mean(2).T


def router_facts(posterior: Tensor, cluster: Tensor) -> dict[str, Any]:
    """Accuracy, calibration error, entropy as a share of its maximum, what own clusters are given."""
    p = posterior.double()
    own = p.gather(1, cluster[:, None])[:, 0]
    by_cluster = [own[cluster == k] for k in range(p.shape[1])]
    return {
        "accuracy": float((p.argmax(1) == cluster).double().mean()),
        "calibration": calibration(posterior, cluster),
        "entropy": float(_entropies(posterior).mean()),
        "cross_entropy": float(-own.clamp(min=1e-12).log().mean()),
        "own_probability": [float(rows.mean()) if len(rows) else None for rows in by_cluster],
    }


def calibration(posterior: Tensor, cluster: Tensor) -> float:
    """The expected calibration error: how far confidence is from being right (Guo et al. 2017, eq. 3)."""
    confidence, choice = posterior.double().max(1)
    right = (choice == cluster).double()
    bins = (confidence * CONFIDENCES).long().clamp(max=CONFIDENCES - 1)
    gap = torch.zeros(CONFIDENCES, dtype=torch.float64).index_add_(0, bins, right - confidence)
    return float(gap.abs().sum() / len(right))


def _entropies(posterior: Tensor) -> Tensor:
    """The entropy of each row as a share of the largest possible."""
    p = posterior.double()
    return -torch.special.xlogy(p, p).sum(1) / math.log(max(2, p.shape[1]))


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


def correlation(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor) -> float | None:
    """Spearman's: whether the one is large where the other is; nothing where one of them never changes."""
    ranks = _ranks(torch.stack([torch.as_tensor(values, dtype=torch.float64) for values in (x, y)]))
    if len(x) < 3 or bool((ranks.std(1) == 0).any()):
        return None
    return float(ranks.corrcoef()[0, 1])


def _ranks(values: Tensor) -> Tensor:
    """Ranks along the last axis, the mean of them where values are equal."""
    below = (values[..., :, None] > values[..., None, :]).sum(-1)
    equal = (values[..., :, None] == values[..., None, :]).sum(-1)
    return below.double() + (equal - 1).double() / 2


def predicts(examined: Sequence[Mapping[str, Any]], resamples: int = RESAMPLES) -> Measured | None:
    """How well the router's entropy predicts what top-1 loses, over all times of all that were examined."""
    rows = [row for each in examined for row in each["times"] if "greedy" in row]
    x, y = (torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in ("entropy", "greedy"))
    if correlation(x, y) is None:
        return None

    def of(chosen: Tensor) -> float:
        value = correlation(x[chosen], y[chosen])
        return math.nan if value is None else value

    measured = bootstrap(len(rows), of, resamples)
    return measured._replace(low=max(-1.0, measured.low), high=min(1.0, measured.high))

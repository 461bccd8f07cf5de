"""From samples to prototypes of clusters, and the temperatures at which they tell clusters apart.

Without temperatures prototypes are far too sure of real samples. They are found on samples that made no
prototype: held-out ones where there are any.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from atoll.data import kmeans
from atoll.data.store import Reader
from atoll.errors import DataError
from atoll.flow import draws, path, prototypes
from atoll.models.prototypes import BINS, Prototypes, Rows
from atoll.runs import Stage

LEAST = 16
"""Different samples behind every prototype."""
ITERATIONS = 10
"""Of k-means."""
MEASURED = 2000
"""Samples of a cluster of which prototypes are made."""
JUDGED = 128
"""Others by which temperatures are found."""


class Labelled(NamedTuple):
    """Samples as networks see them, and their classes; None where nobody is told classes."""

    x_0: Tensor
    label: Tensor | None


class Judged(NamedTuple):
    """Samples that belong to one group of prototypes, and the group's share of all samples."""

    samples: Labelled
    group: int
    share: float


def of_clusters(
    clusters: Sequence[Stage], priors: Sequence[float], classes: int, count: int, seed: int
) -> Prototypes:
    """At most `count` prototypes of each cluster, calibrated; `classes` is 0 where nobody is told them."""
    made = [_of_cluster(cluster, classes, count, seed) for cluster in clusters]
    module = Prototypes([rows for rows, _ in made], range(len(clusters)), priors)
    judged = [Judged(some, k, priors[k]) for k, (_, some) in enumerate(made)]
    return module.calibrated(inverse_temperatures(module, judged, seed))


def _of_cluster(cluster: Stage, classes: int, count: int, seed: int) -> tuple[Rows, Labelled]:
    some = first_half(cluster)
    return of_samples(some.x_0, some.label, classes, count, seed), second_half(cluster)


def of_samples(x_0: Tensor, label: Tensor | None, classes: int, count: int, seed: int = 0) -> Rows:
    """Prototypes of samples as networks see them, (n, *sample); `label` is -1 where there is none.

    Equal samples count once: a mean of copies would be the sample itself.
    """
    x, label = different(x_0, label)
    nearest = _grouped(x, min(count, max(1, len(x) // (2 * LEAST))), seed)
    count = int(nearest.max()) + 1
    means, variances, sizes = prototypes.moments(x, nearest, count)
    table = None
    if classes:
        assert label is not None
        named = label >= 0
        table = torch.bincount(nearest[named] * classes + label[named], minlength=count * classes)
        table = table.view(count, classes).float()
    return Rows(means, variances, sizes.float(), table)


def different(x_0: Tensor, label: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The first of every set of equal samples, as rows; too few are refused."""
    x = x_0.flatten(1).float()
    seen = {hashlib.sha256(row.tobytes()).digest(): place for place, row in enumerate(x.numpy()[::-1])}
    first = torch.tensor(sorted(len(x) - 1 - place for place in seen.values()))
    if len(first) < LEAST:
        raise DataError(f"{len(first)} different samples are too few for router rows; give {LEAST} or more")
    return x[first], None if label is None else label[first]


def _grouped(x: Tensor, count: int, seed: int) -> Tensor:
    """Groups of near samples, none of fewer than the least; as many as that leaves."""
    rows = np.ascontiguousarray(x.numpy())
    centres = kmeans.fine_centres(rows, count, ITERATIONS, seed) if count > 1 else rows[:1]
    while True:
        nearest = kmeans.nearest(rows, centres)
        sizes = np.bincount(nearest, minlength=len(centres))
        if len(centres) == 1 or sizes.min() >= LEAST:
            return torch.from_numpy(np.ascontiguousarray(nearest)).long()
        centres = np.delete(centres, sizes.argmin(), axis=0)


def first_half(cluster: Stage) -> Labelled:
    """Samples of a cluster of which prototypes are made."""
    batch = Reader([cluster], 1, 0).first(_halves(cluster)[0])
    return Labelled(batch.x_0, batch.label)


def second_half(cluster: Stage) -> Labelled:
    """Samples by which they are judged: others, as far as there are any."""
    if is_held_out(cluster):
        batch = Reader([cluster], 1, 0, held_out=True).first(JUDGED)
        return Labelled(batch.x_0, batch.label)
    first, both = _halves(cluster)
    batch = Reader([cluster], 1, 0).first(both)
    return Labelled(batch.x_0[first:], None if batch.label is None else batch.label[first:])


def is_held_out(cluster: Stage) -> bool:
    """Whether enough samples of a cluster are held out to judge by them."""
    return Reader([cluster], 1, 0, held_out=True).rows >= LEAST


def _halves(cluster: Stage) -> tuple[int, int]:
    """How many rows the first half has, and both together: they rest in the order of their hashes."""
    count = cluster.contents.rows
    both = min(count, MEASURED + JUDGED)
    return max(min(LEAST, count), both - max(1, min(JUDGED, both // 2))), both


@torch.inference_mode()
def inverse_temperatures(module: Prototypes, judged: Sequence[Judged], seed: int) -> tuple[float, ...]:
    """β for each part of the time; every group counts by its share."""
    return tuple(_of_bin(module, judged, number, seed) for number in range(BINS))


def _of_bin(module: Prototypes, judged: Sequence[Judged], number: int, seed: int) -> float:
    logits, owner, weights = [], [], []
    for some, k, share in judged:
        source = draws.generator(seed, f"component/calibration/{k}/{number}", 0)
        t = (number + torch.rand(len(some.x_0), generator=source)) / BINS
        x_t = path.point(some.x_0, torch.randn(some.x_0.shape, generator=source), t)
        logits.append(module(x_t, t, some.label if module.classes is not None else None))
        owner.append(torch.full((len(t),), k))
        weights.append(torch.full((len(t),), share / len(t), dtype=torch.float64))
    return prototypes.inverse_temperature(torch.cat(logits), torch.cat(owner), torch.cat(weights))

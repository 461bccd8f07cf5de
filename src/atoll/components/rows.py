"""From samples to router rows: means of groups of many different samples, and nothing of any single one."""

import hashlib
import secrets

import numpy as np
import torch
from torch import Tensor

from atoll.config import ComponentConfig
from atoll.data import kmeans
from atoll.errors import DataError
from atoll.flow import draws, prototypes
from atoll.sampling.grown import Rows

LEAST = 16
"""Different samples behind every row."""
ITERATIONS = 10
"""Of k-means."""


def of_samples(
    x_0: Tensor, label: Tensor | None, classes: int, config: ComponentConfig, seed: int = 0
) -> Rows:
    """Prototypes of samples as networks see them, (n, *sample); `label` is -1 where there is none.

    Equal samples count once: a mean of copies would be the sample itself.
    """
    x, label = _different(x_0.flatten(1).float(), label)
    if len(x) < LEAST:
        raise DataError(f"{len(x)} different samples are too few for router rows; give {LEAST} or more")
    if config.epsilon is not None:
        return _private(x, label, classes, config)
    nearest = _grouped(x, min(config.prototypes, max(1, len(x) // (2 * LEAST))), seed)
    count = int(nearest.max()) + 1
    means, variances, sizes = prototypes.moments(x, nearest, count)
    table = None
    if classes:
        assert label is not None
        named = label >= 0
        table = torch.bincount(nearest[named] * classes + label[named], minlength=count * classes)
        table = table.view(count, classes).float()
    return Rows(means, variances, sizes.float(), table)


def _different(x: Tensor, label: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The first of every set of equal rows."""
    seen = {hashlib.sha256(row.tobytes()).digest(): place for place, row in enumerate(x.numpy()[::-1])}
    first = torch.tensor(sorted(len(x) - 1 - place for place in seen.values()))
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


def _private(x: Tensor, label: Tensor | None, classes: int, config: ComponentConfig) -> Rows:
    """One row for each class, or for all: whose group a sample is in depends on no other sample."""
    group = torch.zeros(len(x), dtype=torch.long)
    if classes and label is not None:
        x, group = x[label >= 0], label[label >= 0]
    assert config.epsilon is not None
    random = draws.generator(secrets.randbits(62), "component/noise")  # whoever knew the seed could undo it
    budget = config.epsilon, config.delta
    means, variances, sizes = prototypes.private_moments(x, group, max(1, classes), budget, random)
    return Rows(means, variances, sizes, torch.diag(sizes) if classes else None)

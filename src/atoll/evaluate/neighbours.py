"""The nearest training samples of each part, in the features by which samples were clustered."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atoll.data.columns import fixed_bytes, integers
from atoll.data.partition import read_assignment
from atoll.data.parts import Parts
from atoll.data.values import standardise
from atoll.evaluate.grouped import features_of, rule_of
from atoll.runs import Run


@dataclass(frozen=True)
class Neighbour:
    """One training sample, by its id."""

    id: str
    distance: float

    def facts(self) -> dict[str, str | float]:
        """As JSON: ids alone, since not everybody who may know who made a sample may see the data."""
        return {"id": self.id, "distance": round(self.distance, 6)}


def nearest(run: Run, x_0: Tensor, count: int) -> list[list[list[Neighbour]]] | None:
    """Of each sample, of each part: the nearest training samples, nearest first.

    None where the data are not at hand, or were not clustered by features. Nearest in features is not where
    a sample comes from: see the sentence of `makers`.
    """
    if not count or not run.data.here or (rule := rule_of(run)) is None:
        return None
    parts, clusters = Parts.of(run), run.config.partition.clusters
    everybody = run.members.count(clusters)  # of those that were added, the data are elsewhere
    rows = torch.from_numpy(rule.points(features_of(run, x_0, run.partition.contents)))
    best: list[list[list[Neighbour]]] = [[[] for _ in range(everybody)] for _ in range(len(x_0))]
    for name in parts.names:
        cluster = torch.from_numpy(integers(read_assignment(run.partition, name)["cluster"]).copy())
        features = torch.from_numpy(rule.points(parts.features(name)))
        ids = parts.ids(name)
        for k in range(clusters):
            own = (cluster == k).nonzero()[:, 0]
            if not len(own):
                continue
            values, order = torch.cdist(rows, features[own]).topk(min(count, len(own)), largest=False)
            for sample in range(len(x_0)):
                pairs = zip(values[sample].tolist(), own[order[sample]].tolist(), strict=True)
                new = [Neighbour(bytes(ids[row]).hex(), far) for far, row in pairs]
                best[sample][k] = sorted([*best[sample][k], *new], key=lambda one: one.distance)[:count]
    return best


def by_id(run: Run, ids: Sequence[str]) -> dict[str, Tensor]:
    """Training samples by id as networks see them, (1, channels, *grid); nothing where they are not here."""
    if not ids or not run.data.here:
        return {}
    parts, known = Parts(run.data), {}
    wanted = {bytes.fromhex(name): name for name in ids}
    for file in parts.names:
        for row, raw in enumerate(parts.ids(file)):
            name = wanted.get(bytes(raw))
            if name is not None and name not in known:
                known[name] = _values(parts, file, row)
    return known


def _values(parts: Parts, file: str, row: int) -> Tensor:
    group, within = divmod(row, parts.contents.group)
    column = parts.read_group(file, group)["sample"]
    stored = np.concatenate([fixed_bytes(chunk) for chunk in column.chunks])[within : within + 1]
    values = stored.view(np.dtype(parts.contents.dtype)).reshape(1, *parts.contents.shape)
    return standardise(torch.from_numpy(values.copy()), parts.contents)

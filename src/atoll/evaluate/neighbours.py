"""The nearest training samples of each part, in the features by which samples were clustered."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.columns import fixed_bytes, integers
from atoll.data.partition import read_assignment
from atoll.data.parts import Parts
from atoll.data.values import standardise
from atoll.evaluate.grouped import features_of, rule_of
from atoll.runs import Run, made_in

VOTERS = 15
"""Nearest samples of all parts by which it is told where a sample lies: one alone may lie over a border."""


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
    everybody = run.members.count(clusters)
    rows = torch.from_numpy(rule.points(features_of(run, x_0, run.partition.contents)))
    best: list[list[list[Neighbour]]] = [[[] for _ in range(everybody)] for _ in range(len(x_0))]
    for name in parts.names:
        cluster = torch.from_numpy(integers(read_assignment(run.partition, name)["cluster"]).copy())
        features, ids = torch.from_numpy(rule.points(parts.features(name))), parts.ids(name)
        for k in range(clusters):
            own = (cluster == k).nonzero()[:, 0]
            _nearer(best, k, rows, features[own], ids[own.numpy()], count)
    for number, private in _grown(run):
        others = Parts(private.data)
        for name in others.names:
            kept = np.flatnonzero(others.kept(name))
            features = torch.from_numpy(rule.points(_features(run, others, name)[kept]))
            _nearer(best, number, rows, features, others.ids(name)[kept], count)
    return best


def lying(run: Run, x_0: Tensor, most: int) -> list[tuple[list[list[Neighbour]], list[float]]] | None:
    """Of each sample: the nearest `most` of each part, and how many of the nearest of all are of each."""
    near = nearest(run, x_0, max(most, VOTERS) if most else 0)
    return None if near is None else [([part[:most] for part in row], shares(row)) for row in near]


def shares(near: Sequence[Sequence[Neighbour]], most: int = VOTERS) -> list[float]:
    """Of one sample: how many of its nearest training samples are of each part, from the nearest of each."""
    everybody = sorted((one.distance, number) for number, part in enumerate(near) for one in part)[:most]
    counts = [0] * len(near)
    for _, number in everybody:
        counts[number] += 1
    return [count / max(1, len(everybody)) for count in counts]


def _nearer(
    best: list[list[list[Neighbour]]],
    number: int,
    rows: Tensor,
    features: Tensor,
    ids: NDArray[np.uint8],
    count: int,
) -> None:
    """Keep the nearest of one part, among those that were known and these."""
    if not len(features):
        return
    values, order = torch.cdist(rows, features).topk(min(count, len(features)), largest=False)
    for sample, known in enumerate(best):
        pairs = zip(values[sample].tolist(), order[sample].tolist(), strict=True)
        new = [Neighbour(bytes(ids[row]).hex(), far) for far, row in pairs]
        known[number] = sorted([*known[number], *new], key=lambda one: one.distance)[:count]


def _grown(run: Run) -> list[tuple[int, Run]]:
    """Parts that the run has grown by on this machine, whose data are here; of others they are elsewhere."""
    made = ((member.number, made_in(run, member.number)) for member in run.members.present)
    return [(number, private) for number, private in made if private is not None and private.data.here]


def _features(run: Run, parts: Parts, name: str) -> NDArray[Any]:
    """Features of a file of another run's samples as this run's rule takes them, at rest or computed."""
    if _alike(run, parts):
        return parts.features(name)
    groups = [_stored(parts, name, group) for file, group, _ in parts.groups() if file == name]
    contents = run.partition.contents
    return np.concatenate([features_of(run, standardise(each, parts.contents), contents) for each in groups])


def _alike(run: Run, parts: Parts) -> bool:
    """Whether features at rest are of the kind that the run's samples are grouped by."""
    return not run.config.grouped_by_start and parts.contents.features == run.data.contents.features


def by_id(run: Run, ids: Sequence[str]) -> dict[str, Tensor]:
    """Training samples by id as networks see them, (1, channels, *grid); nothing where they are not here."""
    known: dict[str, Tensor] = {}
    if not ids:
        return known
    wanted = {bytes.fromhex(name): name for name in ids}
    for one in [run, *(private for _, private in _grown(run))]:
        parts = Parts(one.data) if one.data.here else None
        for file in parts.names if parts is not None else ():
            assert parts is not None
            for row, raw in enumerate(parts.ids(file)):
                name = wanted.get(bytes(raw))
                if name is not None and name not in known:
                    known[name] = _values(parts, file, row)
    return known


def _values(parts: Parts, file: str, row: int) -> Tensor:
    group, within = divmod(row, parts.contents.group)
    return standardise(_stored(parts, file, group)[within : within + 1], parts.contents)


def _stored(parts: Parts, file: str, group: int) -> Tensor:
    """Samples of one group of a file as they rest."""
    column = parts.read_group(file, group)["sample"]
    stored = np.concatenate([fixed_bytes(chunk) for chunk in column.chunks])
    values = stored.view(np.dtype(parts.contents.dtype)).reshape(len(stored), *parts.contents.shape)
    return torch.from_numpy(values.copy())

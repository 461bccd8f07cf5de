"""How a sample's cluster is decided: by its features, at random, by its label, or as a file says."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.config import PartitionConfig
from atoll.data import kmeans
from atoll.data.kmeans import Assigned, Exact, Ints, Rows
from atoll.data.parts import Parts
from atoll.errors import CorruptError, DataError
from atoll.runs import Stage, replacing, write_json

RULE = "rule.json"
FINE, CENTROIDS, PROJECTION = "fine.npy", "centroids.npy", "projection.npy"
MEANS = "class-means.npy"
PER_CENTRE = 256
"""Samples per fine centre that the centres are found from; more make no difference."""
ITERATIONS = 20
PIXEL_DIMENSIONS, START_DIMENSIONS = 64, 48
MIXED = np.uint64(0x9E3779B97F4A7C15)


class View:
    """What a rule may look at of one part; columns are read when they are asked for."""

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts, self._name = parts, name

    @cached_property
    def ids(self) -> NDArray[np.uint8]:
        """(rows, 32)."""
        return self._parts.ids(self._name)

    @cached_property
    def features(self) -> NDArray[Any]:
        """(rows, features)."""
        return self._parts.features(self._name)

    @cached_property
    def labels(self) -> list[str | None]:
        """As the source gave them."""
        labels: list[str | None] = self._parts.columns(self._name, ["label"])["label"].to_pylist()
        return labels

    @cached_property
    def names(self) -> list[str]:
        """Where each sample came from."""
        names: list[str] = self._parts.columns(self._name, ["name"])["name"].to_pylist()
        return names


class Rule(Protocol):
    """A partition in the abstract: it gives any sample, old or new, its cluster."""

    def assign(self, view: View) -> Assigned:
        """The cluster of every row."""
        ...

    def save(self, folder: Path) -> list[str]:
        """Write the rule down, and name the files."""
        ...


class FeatureRule:
    """Every sample to its nearest fine centre, and so to the cluster that the centre belongs to."""

    def __init__(self, fine: Rows, coarse: Ints, projection: Rows | None) -> None:
        self.fine, self.coarse, self._projection = fine, coarse, projection

    @staticmethod
    def project(features: NDArray[Any], projection: Rows | None) -> Rows:
        """Features as points on the unit sphere."""
        if projection is None:
            return kmeans.normalise(features)
        return kmeans.normalise(np.asarray(features, np.float32) @ projection[:-1] + projection[-1])

    def points(self, features: NDArray[Any]) -> Rows:
        """Features as points in which near is alike: those that centres are among."""
        return self.project(features, self._projection)

    @classmethod
    def fit(
        cls,
        features: NDArray[Any],
        config: PartitionConfig,
        seed: int,
        dimensions: int | None,
        scale: NDArray[Any] | None = None,
    ) -> "FeatureRule":
        """Two stages: fine centres of the features, then coarse clusters of the centres.

        Features are taken as they are, or as so many principal components (`dimensions`) of them, each
        divided by its `scale` before.
        """
        projection = None
        if dimensions is not None and (dimensions < features.shape[1] or scale is not None):
            divisor = np.ones(features.shape[1]) if scale is None else scale
            scaled = (features / divisor).astype(np.float32)
            projection = kmeans.principal(scaled, min(dimensions, features.shape[1]))
            projection[:-1] /= divisor[:, None]
        x = cls.project(features, projection)
        count = min(len(x), max(config.clusters, min(config.fine, max(len(x) // 20, 16 * config.clusters))))
        fine = kmeans.fine_centres(x, count, ITERATIONS, seed)
        fine = kmeans.used_centres(x, fine, config.clusters)
        if len(fine) < config.clusters:
            raise DataError(
                f"the features tell only {len(fine)} samples apart for {config.clusters} clusters; "
                "ask for fewer clusters, or use partition.method = 'random'"
            )
        weights = np.bincount(kmeans.nearest(x, fine), minlength=len(fine))
        coarse = kmeans.coarse_clusters(fine, weights, config.clusters, balanced=config.balanced, seed=seed)
        return cls(fine, coarse, projection)

    def assign(self, view: View) -> Assigned:
        """The cluster of every row."""
        return self.assign_features(view.features)

    def assign_features(self, features: NDArray[Any]) -> Assigned:
        """The cluster of every row of features, block by block."""
        blocks = [
            kmeans.assign(
                self.project(features[start : start + kmeans.BLOCK], self._projection), self.fine, self.coarse
            )
            for start in range(0, len(features), kmeans.BLOCK)
        ]
        return Assigned(
            np.concatenate([block.cluster for block in blocks]),
            np.concatenate([block.margin for block in blocks]),
        )

    def save(self, folder: Path) -> list[str]:
        """Write the rule down, and name the files."""
        clusters = int(self.coarse.max()) + 1
        means = np.stack([self.fine[self.coarse == cluster].mean(axis=0) for cluster in range(clusters)])
        arrays = {FINE: self.fine, CENTROIDS: means}
        if self._projection is not None:
            arrays[PROJECTION] = self._projection
        for name, array in arrays.items():
            with replacing(folder / name) as beside, beside.open("wb") as file:
                np.save(file, array, allow_pickle=False)
        write_json(folder / RULE, {"method": "features", "coarse": self.coarse.tolist()})
        return [RULE, *arrays]

    @classmethod
    def load(cls, folder: Path, record: Mapping[str, Any]) -> "FeatureRule":
        """Read the rule that `save` wrote."""
        arrays = {
            name: np.load(folder / name, allow_pickle=False)
            for name in (FINE, PROJECTION)
            if (folder / name).is_file()
        }
        return cls(arrays[FINE], np.array(record["coarse"], np.int64), arrays.get(PROJECTION))


class WithinRule:
    """By features of which the mean of a sample's class is taken away: by what the class does not tell."""

    def __init__(self, rule: FeatureRule, means: Mapping[str, Rows]) -> None:
        self.rule, self._means = rule, means

    @classmethod
    def fit(
        cls, parts: Parts, count: int, seed: int, fit: Callable[[NDArray[Any]], FeatureRule]
    ) -> "WithinRule":
        """The means of all classes, then `fit` of what they leave of about `count` samples."""
        sums: dict[str, Exact] = {}
        sizes: Counter[str] = Counter()
        for name in parts.names:
            view, keep = View(parts, name), parts.kept(name)
            labels = np.array([label or "" for label in view.labels])
            for label in np.unique(labels[keep & (labels != "")]):
                rows = np.asarray(view.features[keep & (labels == label)], np.float64)
                sums[label] = sums.get(label, np.zeros(rows.shape[1])) + rows.sum(axis=0)
                sizes[label] += len(rows)
        if not sums:
            raise DataError("partition.within = 'class' but the samples have no labels; leave it out")
        means = {label: (sums[label] / sizes[label]).astype(np.float32) for label in sorted(sums)}
        _, features = draw(parts, count, seed, lambda name: _centred(View(parts, name), means))
        return cls(fit(features), means)

    def assign(self, view: View) -> Assigned:
        """The cluster of every row; a sample without a label is compared as it is."""
        return self.rule.assign_features(_centred(view, self._means))

    def save(self, folder: Path) -> list[str]:
        """Write the rule down, and name the files."""
        files = self.rule.save(folder)
        with replacing(folder / MEANS) as beside, beside.open("wb") as file:
            np.save(file, np.stack(list(self._means.values())), allow_pickle=False)
        record = {"method": "within", "coarse": self.rule.coarse.tolist(), "classes": list(self._means)}
        write_json(folder / RULE, record)
        return [*files, MEANS]

    @classmethod
    def load(cls, folder: Path, record: Mapping[str, Any]) -> "WithinRule":
        """Read the rule that `save` wrote."""
        means = np.load(folder / MEANS, allow_pickle=False)
        return cls(FeatureRule.load(folder, record), dict(zip(record["classes"], means, strict=True)))


def _centred(view: View, means: Mapping[str, Rows]) -> Rows:
    """Features without the mean of their class."""
    features = np.array(view.features, np.float32)
    labels = np.array([label or "" for label in view.labels])
    for label, mean in means.items():
        features[labels == label] -= mean
    return features


class RandomRule:
    """The baseline: clusters of equal size that know nothing of the samples."""

    def __init__(self, borders: NDArray[np.uint64], seed: int) -> None:
        self._borders, self._seed = borders, seed

    @classmethod
    def fit(cls, ids: NDArray[np.uint8], clusters: int, seed: int) -> "RandomRule":
        """Borders between which equally many of these ids fall."""
        if clusters > 1 and len(np.unique(ids, axis=0)) < clusters:
            raise DataError(
                f"there are fewer different samples than {clusters} clusters; ask for fewer clusters"
            )
        drawn = np.unique(lottery(ids, seed + 1))
        return cls(drawn[[len(drawn) * index // clusters for index in range(1, clusters)]], seed)

    def assign(self, view: View) -> Assigned:
        """The cluster of every row."""
        # Another draw than the one that chose the sample, which holds only the lowest of that.
        cluster = np.searchsorted(self._borders, lottery(view.ids, self._seed + 1), side="right")
        return Assigned(cluster.astype(np.int64), np.zeros(len(cluster), np.float32))

    def save(self, folder: Path) -> list[str]:
        """Write the rule down, and name the files."""
        record = {
            "method": "random",
            "seed": self._seed,
            "borders": [str(border) for border in self._borders],
        }
        write_json(folder / RULE, record)
        return [RULE]

    @classmethod
    def load(cls, folder: Path, record: Mapping[str, Any]) -> "RandomRule":
        """Read the rule that `save` wrote."""
        return cls(np.array([int(border) for border in record["borders"]], np.uint64), record["seed"])


class LabelRule:
    """Clusters by label; where there are more labels than clusters, they are packed evenly."""

    def __init__(self, cluster_of: Mapping[str, int]) -> None:
        self._cluster_of = cluster_of

    @classmethod
    def fit(cls, counts: Mapping[str, int], class_names: Sequence[str], clusters: int) -> "LabelRule":
        """Each label to a cluster: its own, or, largest first, the cluster with the fewest samples so far."""
        present = [name for name in class_names if counts.get(name)]
        if len(present) < clusters:
            raise DataError(
                f"there are {len(present)} labels for {clusters} clusters; ask for fewer clusters"
            )
        if len(present) == clusters:
            return cls({name: index for index, name in enumerate(present)})
        load = [0] * clusters
        cluster_of: dict[str, int] = {}
        for name in sorted(present, key=lambda name: (-counts[name], name)):
            cluster_of[name] = load.index(min(load))
            load[cluster_of[name]] += counts[name]
        return cls(cluster_of)

    def assign(self, view: View) -> Assigned:
        """The cluster of every row."""
        missing = next(
            (name for name, label in zip(view.names, view.labels, strict=True) if label is None), None
        )
        if missing is not None:
            raise DataError(f"{missing} has no label; partition.method 'labels' needs one for every sample")
        cluster = np.array([self._cluster_of[label] for label in view.labels if label is not None], np.int64)
        return Assigned(cluster, np.zeros(len(cluster), np.float32))

    def save(self, folder: Path) -> list[str]:
        """Write the rule down, and name the files."""
        write_json(folder / RULE, {"method": "labels", "cluster_of": dict(self._cluster_of)})
        return [RULE]

    @classmethod
    def load(cls, folder: Path, record: Mapping[str, Any]) -> "LabelRule":
        """Read the rule that `save` wrote."""
        return cls(record["cluster_of"])


def load_rule(stage: Stage) -> Rule:
    """The rule of a finished partition, which can be applied to new samples."""
    for name in stage.record.files:
        if name in (RULE, FINE, PROJECTION, MEANS):
            stage.verify(name)
    return read_rule(stage.path)


def read_rule(folder: Path) -> Rule:
    """A rule as it was written down."""
    record = json.loads((folder / RULE).read_text(encoding="utf-8"))
    kinds: dict[str, Any] = {
        "features": FeatureRule,
        "within": WithinRule,
        "random": RandomRule,
        "labels": LabelRule,
    }
    if record.get("method") not in kinds:
        raise DataError(
            f"{folder} was made by '{record.get('method')}', which says nothing about new samples"
        )
    try:
        rule: Rule = kinds[record["method"]].load(folder, record)
    except (KeyError, ValueError):
        raise CorruptError(f"{folder / RULE} is damaged; partition that run again") from None
    return rule


def lottery(ids: NDArray[np.uint8], seed: int) -> NDArray[np.uint64]:
    """A random number for every id, the same wherever the id appears."""
    words = np.ascontiguousarray(ids[:, :8]).view("<u8")[:, 0].astype(np.uint64)
    return _mix(words ^ _mix(np.array([seed % 2**64], np.uint64)))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    x = x + MIXED
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(
    parts: Parts, count: int, seed: int, features_of: Callable[[str], NDArray[Any]] | None = None
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Ids and features of about `count` samples, in a random order that does not depend on the parts.

    Features are those beside the samples, or those that `features_of` gives of a part.
    """
    features_of = features_of or parts.features
    lowest = np.zeros(0, np.uint64)
    for name in parts.names:
        tickets = lottery(parts.ids(name)[parts.kept(name)], seed)
        lowest = np.concatenate([lowest, tickets])
        if len(lowest) > count:
            lowest = np.partition(lowest, count - 1)[:count]
    limit = lowest.max()
    ids, chosen = [], []
    for name in parts.names:
        everyone = parts.ids(name)
        chosen.append(np.flatnonzero((lottery(everyone, seed) <= limit) & parts.kept(name)))
        ids.append(everyone[chosen[-1]])
    drawn = np.concatenate(ids)
    words = np.ascontiguousarray(drawn).view(">u8").reshape(len(drawn), 4)
    order = np.lexsort((*words.T[::-1], lottery(drawn, seed)))
    place = np.argsort(order)
    like = features_of(parts.names[0])
    features = np.empty((len(drawn), like.shape[1]), like.dtype)
    filled = 0
    for name, rows in zip(parts.names, chosen, strict=True):
        features[place[filled : filled + len(rows)]] = features_of(name)[rows]
        filled += len(rows)
    return drawn[order], features

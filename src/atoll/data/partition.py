"""Two-stage k-means: which sample belongs to which cluster."""

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from atoll.config import PartitionConfig
from atoll.data import kmeans
from atoll.data.encode import Progress, features_name, remove_partial
from atoll.data.store import CLUSTER_SCHEMA, GROUP, open_parquet, row_digest
from atoll.errors import DataError
from atoll.runs import Run, Stage, digest, replacing

SAMPLE = 256
"""Samples per fine centre that the centres are found from."""
ITERATIONS = 20
PIXEL_DIMENSIONS = 64
GALLERY = 64
"""Pictures of a gallery."""


def partition(run: Run, *, start_over: bool = False, progress: Progress | None = None) -> Stage:
    """Assign every sample of `data/` to a cluster, and write each cluster as a folder that stands alone."""
    stage, data, config = run.partition, run.data, run.config.partition
    made_from = {
        "partition": digest(config.model_dump(mode="json")),
        "seed": run.config.seed,
        "data": data.digest,
    }
    if not stage.begin(made_from, start_over):
        return stage
    remove_partial(stage.path)
    try:
        _partition(run, made_from, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DataError(
                f"no space left for {stage.path}; free some and run the same command again"
            ) from None
        raise
    return stage


def _partition(run: Run, made_from: dict[str, Any], progress: Progress | None) -> None:
    stage, data, config, seed = run.partition, run.data, run.config.partition, run.config.seed
    contents = data.contents
    parts = [name for name, _ in contents["parts"]]
    if config.clusters > contents["rows"]:
        raise DataError(
            f"partition.clusters = {config.clusters} but there are only {contents['rows']} samples; "
            "ask for fewer clusters"
        )
    rule = fit(data, parts, config, seed)
    clusters = [rule.assign(*_load_part(data, part)) for part in parts]
    sizes = np.bincount(np.concatenate(clusters), minlength=config.clusters)
    assert sizes.min() > 0
    priors = [float(size / sizes.sum()) for size in sizes]
    class_index = {name: index for index, name in enumerate(contents["class_names"])}
    shared = {
        **{key: contents[key] for key in ("kind", "shape", "dtype", "mean", "std", "class_names")},
        "classes": len(class_index),
        "clusters": config.clusters,
        "priors": priors,
    }
    files: dict[int, list[tuple[str, int]]] = {index: [] for index in range(config.clusters)}
    for number, (part, assigned) in enumerate(zip(parts, clusters, strict=True)):
        for cluster, rows in _scatter(run, part, assigned, class_index, contents):
            files[cluster].append((part, rows))
        if progress is not None:
            progress("partition", number + 1, len(parts))
    with replacing(stage.path / "centroids.npy") as beside, beside.open("wb") as file:
        np.save(file, rule.centroids, allow_pickle=False)
    with replacing(stage.path / "assignment.parquet") as beside:
        _write_assignment(data, parts, clusters, beside)
    for cluster in range(config.clusters):
        own = {**shared, "cluster": cluster, "rows": int(sizes[cluster]), "prior": priors[cluster]}
        folder = run.cluster(cluster)
        folder.finish(made_from, [name for name, _ in files[cluster]], {**own, "parts": files[cluster]})
        _gallery(folder, files[cluster], shared, stage.path / f"gallery-{cluster:02d}.png")
    stage.finish(
        made_from,
        [
            "centroids.npy",
            "assignment.parquet",
            *(f"gallery-{index:02d}.png" for index in range(config.clusters)),
        ],
        {**shared, "sizes": [int(size) for size in sizes], "rows": int(sizes.sum()), "method": config.method},
    )


class Rule:
    """A fitted partition: features in, clusters out."""

    def __init__(
        self, centroids: NDArray[np.float32], coarse: NDArray[np.int64], projection: tuple[Any, Any] | None
    ) -> None:
        self.centroids, self.coarse, self.projection = centroids, coarse, projection

    def project(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Features as points on the unit sphere."""
        x = np.asarray(features, np.float32)
        if self.projection is not None:
            mean, basis = self.projection
            x = (x - mean) @ basis
        return kmeans.normalise(x)

    def assign(self, ids: NDArray[Any], features: NDArray[Any]) -> NDArray[np.int64]:
        """The cluster of every row."""
        return self.coarse[kmeans.nearest(self.project(features), self.centroids)[0]]


class RandomRule(Rule):
    """The baseline: clusters of equal size that know nothing of the samples."""

    def __init__(self, ids: NDArray[Any], clusters: int, seed: int) -> None:
        super().__init__(np.zeros((0, 0), np.float32), np.zeros(0, np.int64), None)
        self.seed = seed
        drawn = np.sort(priority(ids, seed))
        self.borders = drawn[[len(drawn) * index // clusters for index in range(1, clusters)]]

    def assign(self, ids: NDArray[Any], features: NDArray[Any]) -> NDArray[np.int64]:
        """The cluster of every row."""
        return np.searchsorted(self.borders, priority(ids, self.seed), side="right")


def priority(ids: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """A random number for every id, the same wherever the id appears."""
    with np.errstate(over="ignore"):
        words = np.ascontiguousarray(ids[:, :8]).view("<u8")[:, 0].astype(np.uint64)
        return _mix(words ^ _mix(np.array([seed], np.uint64)))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fit(data: Stage, parts: Sequence[str], config: PartitionConfig, seed: int) -> Rule:
    """Find the rule of a partition; it does not depend on the order of the parts."""
    loaded = [_load_part(data, part) for part in parts]
    ids = np.concatenate([part_ids for part_ids, _ in loaded])
    features = np.concatenate([part_features for _, part_features in loaded])
    order = np.lexsort((ids[:, 0], priority(ids, seed)))
    ids, features = ids[order], features[order].astype(np.float32)
    if config.method == "random":
        return RandomRule(ids, config.clusters, seed)
    return fit_features(features, config, seed)


def fit_features(features: NDArray[np.float32], config: PartitionConfig, seed: int) -> Rule:
    """Two stages: fine centres of the features, coarse clusters of the centres."""
    dimensions = min(config.dimensions or PIXEL_DIMENSIONS, *features.shape)
    rule = Rule(np.zeros((0, 0), np.float32), np.zeros(0, np.int64), kmeans.principal(features, dimensions))
    x = rule.project(features)
    count = min(config.fine, max(len(x) // 20, 16 * config.clusters), len(x))
    centres = kmeans.fine_centres(x, max(count, config.clusters), ITERATIONS, seed)
    if len(centres) < config.clusters:
        centres = kmeans.farthest_points(x, max(count, config.clusters))
    if len(centres) < config.clusters:
        raise DataError(
            f"the features tell only {len(centres)} samples apart for {config.clusters} clusters; "
            "ask for fewer clusters or use partition.method = 'random'"
        )
    weights = np.bincount(kmeans.nearest(x, centres)[0], minlength=len(centres))
    rule.centroids = centres
    rule.coarse = kmeans.coarse_clusters(
        centres, weights, config.clusters, balanced=config.balanced, seed=seed
    )
    return rule


def _load_part(data: Stage, part: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Ids and features of a part."""
    with open_parquet(data, part) as file:
        ids = file.read(columns=["id"])["id"].to_pylist()
    features = np.load(data.verify(features_name(part)), allow_pickle=False)
    return np.frombuffer(b"".join(ids), np.uint8).reshape(len(ids), 32), features


def _scatter(
    run: Run, part: str, assigned: NDArray[np.int64], class_index: dict[str, int], contents: dict[str, Any]
) -> Iterator[tuple[int, int]]:
    """Write the rows of a part into one file per cluster that has any."""
    run.data.verify(part)
    with open_parquet(run.data, part) as file:
        table = file.read()
    width = table.schema.field("sample").type.byte_width
    schema = pa.schema([*CLUSTER_SCHEMA[:1], pa.field("sample", pa.binary(width)), *CLUSTER_SCHEMA[1:]])
    for cluster in np.unique(assigned):
        rows = table.take(pa.array(np.flatnonzero(assigned == cluster))).sort_by("id")
        columns = {name: rows[name].to_pylist() for name in ("id", "sample", "label", "caption")}
        columns["label"] = [None if label is None else class_index[label] for label in columns["label"]]
        columns["sha256"] = [
            row_digest(sample, label, caption)
            for sample, label, caption in zip(
                columns["sample"], columns["label"], columns["caption"], strict=True
            )
        ]
        written = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
        with replacing(run.cluster(int(cluster)).path / part) as beside:
            pq.write_table(written, beside, row_group_size=GROUP, compression="zstd", use_dictionary=False)
        yield int(cluster), rows.num_rows


def _write_assignment(
    data: Stage, parts: Sequence[str], clusters: Sequence[NDArray[np.int64]], path: Path
) -> None:
    schema = pa.schema([pa.field("id", pa.binary(32)), pa.field("cluster", pa.int32())])
    with pq.ParquetWriter(path, schema) as writer:
        for part, assigned in zip(parts, clusters, strict=True):
            with open_parquet(data, part) as file:
                ids = file.read(columns=["id"])["id"].combine_chunks()
            writer.write_table(pa.table([ids, pa.array(assigned, pa.int32())], schema=schema))


def _gallery(folder: Stage, files: Sequence[tuple[str, int]], contents: dict[str, Any], path: Path) -> None:
    """A square of pictures that shows what the cluster is about."""
    with open_parquet(folder, files[0][0]) as file:
        samples = file.read_row_group(0, columns=["sample"])["sample"].to_pylist()[:GALLERY]
    channels, height, width = contents["shape"]
    pixels = np.frombuffer(b"".join(samples), np.uint8).reshape(-1, channels, height, width)
    columns = int(np.ceil(np.sqrt(len(pixels))))
    sheet = np.full(
        (channels, -(-len(pixels) // columns) * (height + 2), columns * (width + 2)), 255, np.uint8
    )
    for index, picture in enumerate(pixels):
        top, left = (index // columns) * (height + 2) + 1, (index % columns) * (width + 2) + 1
        sheet[:, top : top + height, left : left + width] = picture
    image = Image.fromarray(sheet[0] if channels == 1 else sheet.transpose(1, 2, 0))
    with replacing(path) as beside:
        image.save(beside, format="PNG")

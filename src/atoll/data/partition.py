"""Which sample belongs to which cluster: fit a rule, assign everything, write each cluster on its own."""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from atoll.config import PartitionConfig
from atoll.data import kmeans, sheets
from atoll.data.columns import integers
from atoll.data.encode import Progress
from atoll.data.named import FileRule
from atoll.data.parts import Parts, writing
from atoll.data.rules import (
    PER_CENTRE,
    PIXEL_DIMENSIONS,
    START_DIMENSIONS,
    FeatureRule,
    LabelRule,
    RandomRule,
    Rule,
    View,
    WithinRule,
    draw,
    load_rule,
    lottery,
)
from atoll.data.store import TEXT_COLUMNS, open_parquet, write_cluster_file
from atoll.errors import DataError
from atoll.runs import Run, Stage, inputs, read_json, replacing, write_json
from atoll.runs.records import ClusterContents, PartitionContents, SampleFormat, SamplesContents

UNIT_BYTES, UNIT_ROWS = 256 * 2**20, 65_536
"""How much is gathered in memory at once to be written cluster by cluster."""
UNITS = "units"
PART, HOLDOUT = "part", "holdout"
"""How names of a cluster's files begin: of what is trained on, and of what is held out."""
GALLERY = 64
"""Pictures of a gallery."""


def partition(run: Run, *, progress: Progress | None = None) -> Stage[PartitionContents]:
    """Assign every sample of `data/` to a cluster, and write each cluster as a folder that stands alone."""
    stage = run.partition
    made_from = inputs.partition_from(run)
    with writing(stage, made_from) as left:
        if left:
            _write(run, made_from, progress or (lambda what, done, total: None))
            shutil.rmtree(stage.path / UNITS, ignore_errors=True)
    return stage


def _write(run: Run, made_from: dict[str, Any], tell: Progress) -> None:
    """Fit, assign, gather, show; each step leaves files from which an interrupted call goes on."""
    stage, config = run.partition, run.config.partition
    parts = Parts.of(run)
    rule = make_rule(parts, config, run.config.seed, stage.path)
    files = rule.save(stage.path)
    for number, name in enumerate(parts.names):
        assign_part(parts, name, rule, stage.path)
        tell("parts assigned", number + 1, len(parts.names))
    summary = summarise(parts, stage, config.clusters)
    units = plan_units(parts)
    for number, unit in enumerate(units):
        gather_unit(parts, unit, run, number)
        tell("parts gathered", number + 1, len(units))
    known = shared(parts, summary["sizes"])
    _finish_clusters(run, parts, summary["sizes"], len(units), made_from, known)
    contents = PartitionContents(
        **known,
        rows=sum(summary["sizes"]),
        holdout=summary["holdout"],
        method=config.method,
        features=parts.grouped_by,
        sizes=summary["sizes"],
        digests=tuple(run.cluster(cluster).digest for cluster in range(config.clusters)),
        **summary["quality"],
    )
    files += [assignment_name(name) for name in parts.names]
    for cluster in range(config.clusters):
        files.append(gallery_name(cluster))
        draw_gallery(parts, summary["gallery"][cluster], contents, stage.path / gallery_name(cluster))
    stage.finish(made_from, files, contents)


def make_rule(parts: Parts, config: PartitionConfig, seed: int, folder: Path) -> Rule:
    """Find the rule that the recipe asks for; it does not depend on the order of the parts."""
    contents = parts.contents
    if config.clusters > contents.rows:
        raise DataError(
            f"partition.clusters = {config.clusters} but there are only {contents.rows} samples; "
            "ask for fewer clusters"
        )
    if config.like is not None:
        return _rule_like(parts, config)
    if config.method == "file":
        assert config.file is not None
        return FileRule(Path(config.file).expanduser(), config.clusters, folder)
    if config.method == "labels":
        counts: Counter[str | None] = Counter()
        for name in parts.names:
            labels, counted = View(parts, name).labels, parts.kept(name) | parts.held_out(name)
            counts.update(label for label, keep in zip(labels, counted, strict=True) if keep)
        known = {label: count for label, count in counts.items() if label is not None}
        return LabelRule.fit(known, contents.class_names, config.clusters)
    count = PER_CENTRE * config.fine
    if config.method == "random" or config.clusters == 1:
        return RandomRule.fit(draw(parts, count, seed)[0], config.clusters, seed)
    if config.within == "class":
        return WithinRule.fit(parts, count, seed, lambda rows: _fit(rows, parts, config, seed))
    return _fit(draw(parts, count, seed)[1], parts, config, seed)


def _fit(features: NDArray[Any], parts: Parts, config: PartitionConfig, seed: int) -> FeatureRule:
    """The rule of these features, with as many principal components as suit them."""
    contents = parts.contents
    if parts.grouped_by == "start":
        return FeatureRule.fit(features, config, seed, config.dimensions or START_DIMENSIONS)
    if contents.features != "pixels":
        return FeatureRule.fit(features, config, seed, config.dimensions)
    scale = None
    if contents.dtype == "float32" and contents.kind != "image":
        # Channels of a series may have any unit; pixels of a picture have the same.
        scale = np.repeat(contents.std, features.shape[1] // contents.shape[0])
    return FeatureRule.fit(features, config, seed, config.dimensions or PIXEL_DIMENSIONS, scale)


def _rule_like(parts: Parts, config: PartitionConfig) -> Rule:
    assert config.like is not None
    stage = inputs.like_stage(config.like)
    for key, here in (("clusters", config.clusters), ("features", parts.grouped_by)):
        there = getattr(stage.contents, key)
        if there != here:
            raise DataError(
                f"partition.like '{config.like}' has {key} = {there} and this recipe {here}; make them equal"
            )
    return load_rule(stage)


def assignment_name(part: str) -> str:
    """The file with the clusters of a part's samples."""
    return part.replace("part-", "assignment-")


def gallery_name(cluster: int) -> str:
    """The picture of a cluster."""
    return f"gallery-{cluster:02d}.png"


def assign_part(parts: Parts, name: str, rule: Rule, folder: Path) -> None:
    """Write id, cluster and margin of every sample of a part: a function of part and rule.

    What is held out has no cluster; in a column of its own stands the one that it would belong to.
    """
    path = folder / assignment_name(name)
    if path.is_file():
        return
    view = View(parts, name)
    assigned = rule.assign(view)
    keep = parts.kept(name)
    columns = {
        "id": pa.array([bytes(raw) for raw in view.ids], pa.binary(32)),
        "cluster": pa.array(assigned.cluster, pa.int32(), mask=~keep),
        "margin": pa.array(assigned.margin, pa.float32()),
    }
    if parts.holdout:
        columns[HOLDOUT] = pa.array(assigned.cluster, pa.int32(), mask=~parts.held_out(name))
    table = pa.table(columns)
    with replacing(path) as beside:
        pq.write_table(table, beside, row_group_size=parts.contents.group, compression="zstd")


def summarise(parts: Parts, stage: Stage, clusters: int) -> dict[str, Any]:
    """Sizes, margins, agreement with labels, and which samples to show, in one pass over the assignment."""
    classes = {name: index for index, name in enumerate(parts.contents.class_names)}
    sizes, margins = np.zeros(clusters, np.int64), np.zeros(clusters)
    table = np.zeros((clusters, max(1, len(classes))), np.int64)
    gallery: list[list[tuple[int, str, int]]] = [[] for _ in range(clusters)]
    held = 0
    for name in parts.names:
        assigned = read_assignment(stage, name)
        held += int(parts.held_out(name).sum())
        cluster = integers(assigned["cluster"])
        keep = cluster >= 0
        sizes += np.bincount(cluster[keep], minlength=clusters)
        margins += np.bincount(cluster[keep], assigned["margin"].to_numpy()[keep], clusters)
        if classes:
            labels = np.array([classes.get(label, -1) if label else -1 for label in View(parts, name).labels])
            np.add.at(table, (cluster[keep & (labels >= 0)], labels[keep & (labels >= 0)]), 1)
        tickets = lottery(parts.ids(name), 0)
        for index in range(clusters):
            own = np.flatnonzero(cluster == index)
            first = own[np.argsort(tickets[own], kind="stable")[:GALLERY]]
            gallery[index] = sorted(
                [*gallery[index], *((int(tickets[row]), name, int(row)) for row in first)]
            )[:GALLERY]
    if sizes.min() == 0:
        empty = ", ".join(map(str, np.flatnonzero(sizes == 0)))
        raise DataError(
            f"no sample falls into cluster {empty}; ask for fewer clusters or change the assignment"
        )
    if parts.holdout and not held:
        raise DataError(
            f"data.holdout = {parts.holdout:g} holds out none of {parts.contents.rows} samples; "
            "give a larger share"
        )
    quality: dict[str, Any] = {"margins": (margins / sizes).tolist()}
    if table.sum() and len(classes) > 1:
        quality["nmi"] = kmeans.mutual_information(table)
        quality["labels"] = table.tolist()
    return {"sizes": sizes.tolist(), "holdout": held, "quality": quality, "gallery": gallery}


def read_assignment(stage: Stage, part: str) -> pa.Table:
    """Id, cluster (null for dropped duplicates and what is held out) and margin of a part's samples."""
    with open_parquet(stage, assignment_name(part)) as file:
        return file.read(use_threads=False)


Unit = Sequence[tuple[str, int, slice]]


def plan_units(parts: Parts) -> list[Unit]:
    """All row groups in units that fit in memory, each drawn from all over the data."""
    groups = list(parts.groups())
    contents = parts.contents
    count = max(-(-contents.bytes // UNIT_BYTES), -(-contents.rows // UNIT_ROWS), 1)
    return [groups[number::count] for number in range(min(count, len(groups)))]


def unit_marker(stage: Stage, number: int) -> Path:
    """The file that says that a unit is in its clusters."""
    return stage.path / UNITS / f"unit-{number:05d}.json"


def gather_unit(parts: Parts, unit: Unit, run: Run, number: int) -> None:
    """Write the rows of a unit into files of their clusters: a function of data, assignment and unit."""
    stage = run.partition
    marker = unit_marker(stage, number)
    if marker.is_file():
        return
    columns = {PART: "cluster", **({HOLDOUT: HOLDOUT} if parts.holdout else {})}
    table, assigned = read_unit(parts, unit, stage, list(columns.values()))
    counts: dict[str, int] = {}
    for prefix, column in columns.items():
        cluster = assigned[column]
        for index in np.unique(cluster[cluster >= 0]):
            path = run.cluster(int(index)).path / part_file(prefix, number)
            counts[_counted(prefix, int(index))] = write_rows(
                table, cluster == index, path, parts.contents.group
            )
    write_json(marker, counts)


def part_file(prefix: str, number: int) -> str:
    """The file of a cluster with its rows of a unit."""
    return f"{prefix}-{number:05d}.parquet"


def write_rows(table: pa.Table, wanted: NDArray[np.bool_], path: Path, group: int) -> int:
    """Write some rows as a file of a cluster; how many they are."""
    # By id, which is as good as at random: neighbours in a source are often alike.
    own = table.take(pa.array(np.flatnonzero(wanted))).sort_by("id")
    with replacing(path) as beside:
        write_cluster_file(beside, own, group)
    return own.num_rows


def _counted(prefix: str, cluster: int) -> str:
    """Where a unit's marker counts the rows of a cluster's file."""
    return str(cluster) if prefix == PART else f"{prefix} {cluster}"


def read_unit(
    parts: Parts, unit: Unit, stage: Stage, columns: Sequence[str]
) -> tuple[pa.Table, dict[str, NDArray[np.int64]]]:
    """Samples of a unit with their labels as numbers, and their clusters, -1 for those that do not count.

    Clusters are by columns of the assignment: of those that are trained on, and of those that are held out.
    """
    assigned = []
    for name, group, _ in unit:
        with open_parquet(stage, assignment_name(name)) as file:
            assigned.append(file.read_row_group(group, list(columns)))
    clusters = {name: integers(pa.concat_tables(assigned)[name]) for name in columns}
    return read_rows(parts, unit), clusters


def read_rows(parts: Parts, unit: Unit) -> pa.Table:
    """Samples of a unit with their labels as numbers."""
    classes = {name: index for index, name in enumerate(parts.contents.class_names)}
    table = pa.concat_tables([parts.read_group(name, group) for name, group, _ in unit])
    labels = [None if label is None else classes[label] for label in table["label"].to_pylist()]
    text = [name for name in TEXT_COLUMNS if name in table.column_names]
    table = table.set_column(table.column_names.index("label"), "label", pa.array(labels, pa.int64()))
    own = table.select(["id", "sample", "label", "caption", *text])
    # Without what the part says of itself: a cluster's file tells of its own samples and of no others.
    return own.replace_schema_metadata(None).combine_chunks()


def shared(parts: Parts, sizes: Sequence[int]) -> dict[str, Any]:
    """What every cluster knows of the whole."""
    keys = SamplesContents.model_fields.keys() - {"rows"}
    return {
        **{key: getattr(parts.contents, key) for key in keys},
        "classes": len(parts.contents.class_names),
        "clusters": len(sizes),
        "priors": tuple(size / sum(sizes) for size in sizes),
    }


def _finish_clusters(
    run: Run,
    parts: Parts,
    sizes: Sequence[int],
    units: int,
    made_from: dict[str, Any],
    known: dict[str, Any],
) -> None:
    """Say of every cluster what is in it."""
    written = [read_json(unit_marker(run.partition, number)) for number in range(units)]
    for cluster, rows in enumerate(sizes):
        files = {
            prefix: tuple(
                (part_file(prefix, number), counts[_counted(prefix, cluster)])
                for number, counts in enumerate(written)
                if _counted(prefix, cluster) in counts
            )
            for prefix in (PART, HOLDOUT)
        }
        contents = ClusterContents(
            **known,
            cluster=cluster,
            rows=rows,
            prior=known["priors"][cluster],
            bytes=parts.contents.bytes * rows // max(1, parts.contents.rows),
            parts=files[PART],
            holdout=files[HOLDOUT],
        )
        names = [name for name, _ in (*files[PART], *files[HOLDOUT])]
        run.cluster(cluster).finish(made_from, names, contents)


def draw_gallery(
    parts: Parts, chosen: Sequence[tuple[int, str, int]], contents: SampleFormat, path: Path
) -> None:
    """A square of pictures that shows what a cluster is about."""
    stored = [sheets.stored_sample(parts.stage.path / name, row, parts.contents) for _, name, row in chosen]
    sheets.draw(np.stack(stored), contents, path)

"""Samples taken out of what is at rest: all that is left stays where it is, in the same order.

A cluster's files lose rows and are otherwise as they were, so that whatever never saw those rows finds the
same bytes as before.
"""

import json
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from atoll.config import DataConfig
from atoll.data import partition, sheets, summary
from atoll.data.columns import fixed_bytes
from atoll.data.listing import PICTURES
from atoll.data.named import read_rows
from atoll.data.parts import Facts, Parts, dropped_path, features_path, read_facts
from atoll.data.samples import Sample
from atoll.data.sources import open_source
from atoll.data.store import write_cluster_file
from atoll.errors import DataError
from atoll.runs import Run, Stage, file_digest, replacing
from atoll.runs.records import ClusterContents, StageRecord

LISTS = (".txt", ".csv", ".jsonl")
"""Files that name samples; all others hold them."""
HEX = 64
"""Characters of an id."""


def wanted(path: Path, config: DataConfig) -> tuple[set[bytes], set[str]]:
    """Which samples a file asks for, by ids and by names; a file or folder of samples means all in it."""
    if not path.exists():
        raise DataError(f"{path} is not there; give a list of ids or names, or the samples themselves")
    if path.suffix in LISTS:
        keys = [line.strip() for line in _lines(path) if line.strip()]
        ids = {bytes.fromhex(key) for key in keys if _is_id(key)}
        return ids, {key for key in keys if not _is_id(key)}
    with tempfile.TemporaryDirectory() as place:
        if path.suffix.lower() in PICTURES:
            (Path(place) / path.name).symlink_to(path.resolve())
            path = Path(place)
        source = open_source(config.model_copy(update={"source": str(path.absolute())}))
        items = (item for piece in range(source.pieces) for item in source.read(piece))
        return {item.id for item in items if isinstance(item, Sample)}, set()


def _lines(path: Path) -> Iterator[str]:
    """The keys of a list: a line each, or the column `id` or `name` of a table."""
    if path.suffix == ".txt":
        yield from path.read_text(encoding="utf-8").splitlines()
        return
    for row in read_rows(path):
        key = row.get("id") or row.get("name")
        if not key:
            raise DataError(f"{path} has a row without `id` or `name`; give one of these columns")
        yield str(key)


def _is_id(key: str) -> bool:
    return len(key) == HEX and all(letter in "0123456789abcdefABCDEF" for letter in key)


def find(run: Run, ids: Collection[bytes], names: Collection[str]) -> dict[bytes, list[str]]:
    """The ids of these samples in `data/`, with their names; an error if one of them is not there."""
    parts, known, seen = Parts(run.data), set(ids), dict[bytes, list[str]]()
    missing = set(names)
    for part in parts.names:
        table = parts.columns(part, ["id", "name"])
        for raw, name in zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True):
            if raw in known or name in names:
                seen.setdefault(raw, []).append(name)
                missing.discard(name)
    unknown = sorted([raw.hex()[:12] for raw in known - seen.keys()] + sorted(missing))
    if unknown:
        raise DataError(
            f"{unknown[0]} is no sample of this run, and {len(unknown) - 1} more; nothing was forgotten"
            if len(unknown) > 1
            else f"{unknown[0]} is no sample of this run; nothing was forgotten"
        )
    return seen


def clusters_of(run: Run, ids: Collection[bytes]) -> dict[int, int]:
    """How many rows of these samples each cluster has, those that are held out of it among them."""
    counts: dict[int, int] = {}
    for index in range(run.config.partition.clusters):
        cluster = run.cluster(index)
        rows = sum(_count(cluster.verify(name), ids) for name in cluster.record.files)
        if rows:
            counts[index] = rows
    return counts


def _count(path: Path, ids: Collection[bytes]) -> int:
    return sum(raw in ids for raw in pq.read_table(path, columns=["id"])["id"].to_pylist())


def take_out(run: Run, ids: Collection[bytes], *, clusters: bool = True) -> None:
    """Rewrite `data/` and `partition/` without these samples; a call that was interrupted is made again.

    `clusters` says whether there is a partition to keep, or one will be found anew.
    """
    _rewrite_data(run, ids)
    if clusters:
        _rewrite_partition(run, ids)


def _rewrite_data(run: Run, ids: Collection[bytes]) -> None:
    stage, record = run.data, run.data.record
    contents = run.data.contents
    facts = dict[str, Facts]()
    for name, _ in contents.parts:
        path = stage.path / name
        table = pq.read_table(path, use_threads=False)
        if "name" not in table.column_names:  # a part without samples
            facts[name] = read_facts(path)
            continue
        keep = np.array([raw not in ids for raw in table["id"].to_pylist()], bool)
        if not keep.all():
            _rewrite_features(path, keep)
            known = _without(read_facts(path), table.filter(pa.array(~keep)))
            left = table.filter(pa.array(keep)).replace_schema_metadata({"atoll": json.dumps(known.__dict__)})
            _write_table(path, left, contents.group)
        facts[name] = read_facts(path)
    parts = tuple((name, fact.rows) for name, fact in facts.items())
    labels: dict[str, int] = {}
    for fact in facts.values():
        for label, count in fact.label_counts.items():
            labels[label] = labels.get(label, 0) + count
    about = contents.understood.model_copy(
        update={
            "class_counts": {name: labels.get(name, 0) for name in contents.understood.class_counts},
            "labelled": sum(labels.values()),
            "captions": sum(fact.captions for fact in facts.values()),
        }
    )
    dropped = sum(_dropped(stage, name) for name in facts)
    updated = contents.model_copy(
        update={
            "rows": sum(rows for _, rows in parts) - dropped,
            "bytes": sum(fact.bytes for fact in facts.values()),
            "parts": parts,
            "understood": about,
        }
    )
    filled = [stage.path / name for name, rows in parts if rows]
    sheets.contact_sheet(filled, updated, stage.path / summary.SHEET)
    _stamp(stage, record.made_from, [*record.files], updated)


def _dropped(stage: Stage, name: str) -> int:
    path = dropped_path(stage.path / name)
    return len(np.load(path, allow_pickle=False)) if path.is_file() else 0


def _rewrite_features(path: Path, keep: NDArray[np.bool_]) -> None:
    """Features and dropped rows first: that a part's own rows are gone is the sign that it is done."""
    features = np.load(features_path(path), allow_pickle=False)
    if len(features) == len(keep):
        _save(features_path(path), features[keep])
    dropped = dropped_path(path)
    if dropped.is_file():
        mask = np.zeros(len(keep), bool)
        mask[np.load(dropped, allow_pickle=False)] = True
        _save(dropped, np.flatnonzero(mask[keep]))


def _save(path: Path, array: NDArray[Any]) -> None:
    with replacing(path) as beside, beside.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def _without(facts: Facts, gone: pa.Table) -> Facts:
    """What a part says of itself without some of its rows; statistics of channels stay those of all."""
    labels = [label for label in gone["label"].to_pylist() if label is not None]
    counts = {name: count - labels.count(name) for name, count in facts.label_counts.items()}
    sizes = [gone[name].nbytes for name in ("sample", "tokens", "pooled") if name in gone.column_names]
    facts.rows -= gone.num_rows
    facts.bytes = max(0, facts.bytes - sum(sizes))
    facts.label_counts = {name: count for name, count in counts.items() if count}
    facts.captions -= sum(caption is not None for caption in gone["caption"].to_pylist())
    names = set(gone["name"].to_pylist())
    for remarks in (facts.remarks, facts.reasons):
        for what, (count, first) in list(remarks.items()):
            remarks[what] = [count, "forgotten" if first in names else first]
    return facts


def _write_table(path: Path, table: pa.Table, group: int) -> None:
    with replacing(path) as beside:
        pq.write_table(
            table.combine_chunks(),
            beside,
            row_group_size=group,
            compression="zstd",
            use_dictionary=["label"] if "label" in table.column_names else False,
        )


def _rewrite_partition(run: Run, ids: Collection[bytes]) -> None:
    stage, before = run.partition, run.partition.contents
    record = stage.record
    made_from = {**record.made_from, "data": run.data.digest}
    for name in sorted(record.files):
        if name.startswith("assignment-"):
            table = pq.read_table(stage.path / name, use_threads=False)
            keep = np.array([raw not in ids for raw in table["id"].to_pylist()], bool)
            if not keep.all():
                with replacing(stage.path / name) as beside:
                    left = table.filter(pa.array(keep)).combine_chunks()
                    pq.write_table(left, beside, row_group_size=before.group, compression="zstd")
    parts = Parts(run.data, run.config.data.holdout)
    summed = partition.summarise(parts, stage, before.clusters)
    sizes = summed["sizes"]
    priors = tuple(size / sum(sizes) for size in sizes)
    touched = [k for k in range(before.clusters) if _rewrite_cluster(run.cluster(k), ids, priors, made_from)]
    quality = {"labels": None, "nmi": before.nmi, **summed["quality"]}
    contents = before.model_copy(
        update={
            **{key: _tuples(value) for key, value in quality.items()},
            "rows": sum(sizes),
            "sizes": tuple(sizes),
            "priors": priors,
            "holdout": summed["holdout"],
            "digests": tuple(run.cluster(k).digest for k in range(before.clusters)),
        }
    )
    for k in touched:
        picture = stage.path / partition.gallery_name(k)
        partition.draw_gallery(parts, summed["gallery"][k], contents, picture)
    _stamp(stage, made_from, [*record.files], contents)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


def _rewrite_cluster(
    cluster: Stage[ClusterContents],
    ids: Collection[bytes],
    priors: Sequence[float],
    made_from: dict[str, Any],
) -> bool:
    """A cluster without some samples, in the order that it had; whether it had any of them."""
    contents, touched = cluster.contents, False
    left: dict[str, list[tuple[str, int]]] = {}
    for kind in ("parts", "holdout"):
        left[kind] = []
        for name, _ in getattr(contents, kind):
            path = cluster.path / name
            table = pq.read_table(path, use_threads=False) if path.is_file() else None
            if table is None:  # a call that was interrupted had emptied it
                touched = True
                continue
            ids_here = np.concatenate([fixed_bytes(chunk) for chunk in table["id"].chunks])
            keep = np.array([bytes(raw) not in ids for raw in ids_here], bool)
            if not keep.all():
                touched = True
                _rewrite_file(path, table.filter(pa.array(keep)), contents.group)
            if keep.any():
                left[kind].append((name, int(keep.sum())))
    rows = sum(count for _, count in left["parts"])
    share = rows / max(1, contents.rows)
    updated = contents.model_copy(
        update={
            "rows": rows,
            "priors": tuple(priors),
            "prior": priors[contents.cluster],
            "bytes": round(contents.bytes * share),
            **{kind: tuple(files) for kind, files in left.items()},
        }
    )
    _stamp(cluster, made_from, [name for files in left.values() for name, _ in files], updated)
    return touched


def _rewrite_file(path: Path, table: pa.Table, group: int) -> None:
    if not table.num_rows:
        path.unlink()
        return
    with replacing(path) as beside:
        own = table.drop_columns(["sha256"]).replace_schema_metadata(None)
        write_cluster_file(beside, own.combine_chunks(), group)


def _stamp(stage: Stage, made_from: dict[str, Any], files: Sequence[str], contents: Any) -> None:
    """Say what is in a stage now."""
    digests = {name: file_digest(stage.path / name) for name in sorted(files)}
    stage.write(StageRecord.of(made_from, digests, contents))

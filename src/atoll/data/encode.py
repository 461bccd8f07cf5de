"""What each sample becomes before it rests: its values, and the features it is grouped by."""

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from atoll.data.sources import Sample, Skipped, Source, open_source
from atoll.data.store import GROUP
from atoll.errors import DataError
from atoll.runs import Run, Stage, digest, replacing

PART = 32_768
"""Samples of one file at rest."""
PIXEL_FEATURES = 1024
"""At most so many values of a sample serve as its features when there is no model to make better ones."""

Progress = Callable[[str, int, int], None]


def prepare(run: Run, *, start_over: bool = False, progress: Progress | None = None) -> Stage:
    """Bring all samples of the source to rest in `data/`."""
    stage, config = run.data, run.config.data
    source = open_source(config)
    made_from = {
        "data": digest(config.model_dump(mode="json", exclude={"source", "max_skipped"})),
        "source": source.identity,
    }
    if not stage.begin(made_from, start_over):
        return stage
    remove_partial(stage.path)
    try:
        parts = list(_parts(source, stage, config.max_skipped, progress))
        contents = _contents(source, stage, parts)
    except DataError:
        shutil.rmtree(stage.path, ignore_errors=True)
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DataError(
                f"no space left for {stage.path}; free some and run the same command again"
            ) from None
        raise
    stage.finish(made_from, [name for part in parts for name in (part, features_name(part))], contents)
    return stage


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)


def features_name(part: str) -> str:
    """The file with the features of a part."""
    return part.replace("part-", "features-").replace(".parquet", ".npy")


def _parts(source: Source, stage: Stage, max_skipped: float, progress: Progress | None) -> Iterator[str]:
    """Write every part that is not there yet, and name them all."""
    good = bad = 0
    for piece in range(source.pieces):
        for chunk in range(10**6):
            name = f"part-{piece:05d}-{chunk:03d}.parquet"
            if not (stage.path / name).is_file() and not write_part(source, piece, chunk, stage.path / name):
                break
            facts = part_facts(stage.path / name)
            good, bad = good + facts["rows"], bad + len(facts["skipped"])
            if bad > max_skipped * (good + bad):
                example = facts["skipped"][0] if facts["skipped"] else {"name": "?", "reason": "?"}
                raise DataError(
                    f"{bad} of {good + bad} samples cannot be read, the first is {example['name']} "
                    f"({example['reason']}); repair them, or allow more by data.max_skipped"
                )
            if progress is not None:
                progress("prepare", piece + 1, source.pieces)
            yield name
            if facts["rows"] + len(facts["skipped"]) < PART:
                break
    if not good:
        raise DataError("the source holds no samples; give one that does")


def write_part(source: Source, piece: int, chunk: int, path: Path) -> bool:
    """Write one part, a function of the source and two numbers; False if the piece has no more samples."""
    skipped: list[Skipped] = []
    samples: list[Sample] = []
    for item in islice(source.read(piece, chunk * PART), PART):
        if isinstance(item, Skipped):
            skipped.append(item)
            continue
        if samples and item.values.shape != samples[0].values.shape:
            raise DataError(
                f"{item.name} is {_size(item)} but {samples[0].name} is {_size(samples[0])}; "
                "set data.size, and data.channels if need be, to make them alike"
            )
        samples.append(item)
    if not samples and not skipped:
        return False
    facts = {
        "rows": len(samples),
        "shape": list(samples[0].values.shape) if samples else None,
        "dtype": str(samples[0].values.dtype) if samples else None,
        "skipped": [{"name": item.name, "reason": item.reason} for item in skipped],
    }
    with replacing(path.with_name(features_name(path.name))) as beside, beside.open("wb") as file:
        np.save(file, pixel_features(samples), allow_pickle=False)
    with replacing(path) as beside:
        _write_table(samples, facts, beside)
    return True


def part_facts(path: Path) -> dict[str, Any]:
    """What a part says of itself."""
    return dict(json.loads(pq.read_schema(path).metadata[b"atoll"]))


def pixel_features(samples: Sequence[Sample]) -> NDArray[np.float16]:
    """Small versions of the samples, as rows."""
    if not samples:
        return np.zeros((0, 0), np.float16)
    values = torch.from_numpy(np.stack([sample.values for sample in samples])).float()
    channels, *grid = values.shape[1:]
    side = int((PIXEL_FEATURES / channels) ** (1 / len(grid)))
    small = [min(length, max(1, side)) for length in grid]
    if small != grid:
        values = F.interpolate(values, size=small, mode="area")
    return values.flatten(1).to(torch.float16).numpy()


def _write_table(samples: Sequence[Sample], facts: dict[str, Any], path: Path) -> None:
    width = samples[0].values.nbytes if samples else 1
    schema = pa.schema(
        [
            pa.field("id", pa.binary(32)),
            pa.field("name", pa.string()),
            pa.field("sample", pa.binary(width)),
            pa.field("label", pa.string()),
            pa.field("caption", pa.string()),
        ],
        metadata={"atoll": json.dumps(facts)},
    )
    columns = {
        "id": [sample.id for sample in samples],
        "name": [sample.name for sample in samples],
        "sample": [sample.values.tobytes() for sample in samples],
        "label": [sample.label for sample in samples],
        "caption": [sample.caption for sample in samples],
    }
    table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    pq.write_table(table, path, row_group_size=GROUP, compression="zstd", use_dictionary=["label"])


def _contents(source: Source, stage: Stage, parts: Sequence[str]) -> dict[str, Any]:
    facts = [part_facts(stage.path / part) for part in parts]
    shapes = {tuple(fact["shape"]) for fact in facts if fact["rows"]}
    if len(shapes) > 1:
        raise DataError(f"samples have different shapes: {sorted(shapes)}; set data.size to make them alike")
    shape = next(iter(shapes))
    skipped = [item for fact in facts for item in fact["skipped"]]
    return {
        "kind": source.kind,
        "shape": list(shape),
        "dtype": next(fact["dtype"] for fact in facts if fact["rows"]),
        "mean": [127.5] * shape[0],
        "std": [127.5] * shape[0],
        "rows": sum(fact["rows"] for fact in facts),
        "parts": [[part, fact["rows"]] for part, fact in zip(parts, facts, strict=True)],
        "class_names": _class_names(source, stage, parts),
        "skipped": len(skipped),
        "skipped_examples": skipped[:20],
    }


def _class_names(source: Source, stage: Stage, parts: Sequence[str]) -> list[str]:
    if source.class_names:
        return list(source.class_names)
    found: set[str] = set()
    for part in parts:
        labels = pq.read_table(stage.path / part, columns=["label"])["label"]
        found.update(label for label in labels.unique().to_pylist() if label is not None)
    return sorted(found, key=lambda name: (0, int(name), name) if name.isdigit() else (1, 0, name))


def _size(sample: Sample) -> str:
    return " x ".join(map(str, sample.values.shape))

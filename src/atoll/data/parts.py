"""The parts of `data/`: one file of samples and one of their features each, written whole or not at all."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from atoll.data.columns import fixed_bytes
from atoll.data.holdout import is_held_out
from atoll.data.samples import Sample, Skipped
from atoll.data.store import group_rows, open_parquet
from atoll.data.text import TextAtRest
from atoll.errors import AtollError, CorruptError, DataError, is_full
from atoll.runs import Run, Stage, file_digest, repair, replacing
from atoll.runs.locks import alone
from atoll.runs.records import DataContents
from atoll.runs.seen import FeaturesContents

KEPT_REASONS = 50
"""Different reasons that a part names."""
KEPT_SKIPPED = 1000
"""Skipped samples that a part names; more are counted only."""


@dataclass(frozen=True)
class Encoded:
    """A batch of samples after encoding, row by row the same samples."""

    samples: Sequence[Sample]
    values: NDArray[Any]
    """(n, channels, *grid) as stored: uint8 pixels, float32 series, float16 latents."""
    features: NDArray[Any]
    text: TextAtRest | None = None
    preview: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    """Normal equations of the linear map from latents to pixels."""


@dataclass
class Facts:
    """What a part says of itself, kept in the metadata of its file."""

    rows: int = 0
    bytes: int = 0
    shape: list[int] | None = None
    dtype: str | None = None
    skipped: int = 0
    skipped_names: list[dict[str, str]] = field(default_factory=list)
    unknown: list[dict[str, str]] = field(default_factory=list)
    """Skipped samples with which more are lost than can be counted."""
    reasons: dict[str, list[Any]] = field(default_factory=dict)
    """Why samples were skipped: how many, and the first."""
    remarks: dict[str, list[Any]] = field(default_factory=dict)
    """What was lost of samples on the way: of how many, and the first."""
    labels: list[str] = field(default_factory=list)
    label_counts: dict[str, int] = field(default_factory=dict)
    captions: int = 0
    sums: list[float] | None = None
    """Per channel, as the next: with `values_per_channel` they give mean and standard deviation."""
    squares: list[float] | None = None
    values_per_channel: int = 0
    preview: list[list[list[float]]] | None = None
    text: dict[str, int] | None = None

    def skip(self, item: Skipped) -> None:
        """Count a sample that could not be used."""
        self.skipped += 1
        _count(self.reasons, item.reason, item.name)
        if item.unknown:
            self.unknown.append({"name": item.name, "reason": item.reason})
        if len(self.skipped_names) < KEPT_SKIPPED:
            self.skipped_names.append({"name": item.name, "reason": item.reason})

    def add(self, encoded: Encoded) -> None:
        """Count a batch."""
        values = encoded.values
        if self.shape is None:
            self.shape, self.dtype = list(values.shape[1:]), str(values.dtype)
        self.rows += len(values)
        self.bytes += values.nbytes
        if encoded.text is not None:
            self.bytes += sum(len(raw) for raw in (*encoded.text.tokens, *encoded.text.pooled))
            self.text = {"tokens": encoded.text.length, "width": encoded.text.width}
        self.labels = sorted(
            {*self.labels, *(item.label for item in encoded.samples if item.label is not None)}
        )
        for item in encoded.samples:
            self.captions += item.caption is not None
            if item.label is not None:
                self.label_counts[item.label] = self.label_counts.get(item.label, 0) + 1
            for remark in item.remarks:
                _count(self.remarks, remark, item.name)
        if values.dtype != np.uint8:
            exact = np.moveaxis(values.astype(np.float64), 1, 0).reshape(values.shape[1], -1)
            self.sums = (np.array(self.sums or [0.0]) + exact.sum(axis=1)).tolist()
            self.squares = (np.array(self.squares or [0.0]) + (exact**2).sum(axis=1)).tolist()
            self.values_per_channel += exact.shape[1]
        if encoded.preview is not None:
            before = self.preview or [[[0.0]], [[0.0]]]
            self.preview = [
                (np.array(old) + new).tolist() for old, new in zip(before, encoded.preview, strict=True)
            ]


def _count(counts: dict[str, list[Any]], text: str, name: str) -> None:
    """Count what was said of a sample; of many different things the later ones are one."""
    text = text if text in counts or len(counts) < KEPT_REASONS else "others"
    counts.setdefault(text, [0, name])[0] += 1


class PartWriter:
    """Writes a part row group by row group, so that memory does not grow with it."""

    def __init__(self, path: Path) -> None:
        self.path, self.facts = path, Facts()
        self._features: list[NDArray[Any]] = []
        self._waiting: list[pa.Table] = []
        self._stack = contextlib.ExitStack()
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "PartWriter":
        self._beside = self._stack.enter_context(replacing(self.path))
        return self

    def add(self, encoded: Encoded) -> None:
        """Append rows."""
        self.facts.add(encoded)
        self._features.append(encoded.features)
        self._waiting.append(part_table(encoded))
        if self._writer is None:
            self._group = group_rows(encoded.values[0].nbytes)
            self._writer = pq.ParquetWriter(
                self._beside, self._waiting[0].schema, compression="zstd", use_dictionary=["label"]
            )
        while sum(len(table) for table in self._waiting) >= self._group:
            self._write(self._group)

    def _write(self, rows: int) -> None:
        assert self._writer is not None
        table = pa.concat_tables(self._waiting)
        self._writer.write_table(table.slice(0, rows).combine_chunks(), row_group_size=rows)
        self._waiting = [table.slice(rows)]

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._writer is None:
            self._writer = pq.ParquetWriter(self._beside, pa.schema([pa.field("id", pa.binary(32))]))
        if self._writer is not None:
            if kind is None:
                self._finish(self._writer)
            with contextlib.suppress(OSError) if kind is not None else contextlib.nullcontext():
                self._writer.close()
        self._stack.__exit__(kind, error, trace)

    def _finish(self, writer: pq.ParquetWriter) -> None:
        if sum(len(table) for table in self._waiting):
            self._write(sum(len(table) for table in self._waiting))
        writer.add_key_value_metadata({"atoll": json.dumps(self.facts.__dict__)})
        features = np.concatenate(self._features) if self._features else np.zeros((0, 0), np.float16)
        # First the features: that the samples are there is the sign of a whole part.
        with replacing(features_path(self.path)) as beside, beside.open("wb") as file:
            np.save(file, features, allow_pickle=False)


def part_table(encoded: Encoded) -> pa.Table:
    """Encoded samples as rows."""
    values = np.ascontiguousarray(encoded.values)
    width = values[0].nbytes
    columns = {
        "id": pa.array([sample.id for sample in encoded.samples], pa.binary(32)),
        "name": pa.array([sample.name for sample in encoded.samples], pa.string()),
        "sample": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(values), [None, pa.py_buffer(values.tobytes())]
        ),
        "label": pa.array([sample.label for sample in encoded.samples], pa.string()),
        "caption": pa.array([sample.caption for sample in encoded.samples], pa.string()),
    }
    if encoded.text is not None:
        columns["tokens"] = pa.array(encoded.text.tokens, pa.binary())
        columns["pooled"] = pa.array(encoded.text.pooled, pa.binary())
    return pa.table(columns)


def features_path(path: Path) -> Path:
    """The file with the features of a part."""
    return path.with_name(path.name.replace("part-", "features-").replace(".parquet", ".npy"))


def dropped_path(path: Path) -> Path:
    """The file with the rows of a part that are left out."""
    return path.with_name(path.name.replace("part-", "dropped-").replace(".parquet", ".npy"))


def read_facts(path: Path) -> Facts:
    """What a part says of itself."""
    try:
        return Facts(**json.loads(pq.read_metadata(path).metadata[b"atoll"]))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        raise CorruptError(f"{path} is damaged; {repair.advice(path.parent)}") from None


class Parts:
    """The finished parts of a `data/` folder, read without holding more than one in memory."""

    def __init__(
        self, data: Stage[DataContents], holdout: float = 0.0, features: Stage[FeaturesContents] | None = None
    ) -> None:
        """`holdout` is the share of samples that count for nothing but to be held out.

        `features` are those of a network of ours, in place of what lies beside the samples.
        """
        self.stage, self.record, self.holdout, self._features = data, data.record, holdout, features
        self.contents: DataContents = data.contents
        self.rows_of: dict[str, int] = {name: rows for name, rows in self.contents.parts if rows}
        self.names = list(self.rows_of)
        self._verified: set[str] = set()

    @classmethod
    def of(cls, run: Run) -> "Parts":
        """Those of a run, with what its samples are grouped by."""
        features = run.features if run.config.grouped_by_start else None
        return cls(run.data, run.config.data.holdout, features)

    @property
    def grouped_by(self) -> str:
        """Where the features come from."""
        return self.contents.features if self._features is None else "start"

    def verify(self, name: str) -> Path:
        """The path of a file after checking, once, that it is the one that was written."""
        path = self.stage.path / name
        if name not in self._verified:
            if not path.is_file() or file_digest(path) != self.record.files.get(name):
                what = "damaged (sha256 differs)" if path.is_file() else "missing"
                raise CorruptError(f"{path} is {what}; {repair.advice(path.parent)}")
            self._verified.add(name)
        return path

    def kept(self, name: str) -> NDArray[np.bool_]:
        """Which rows of a part count: all but dropped duplicates and what is held out."""
        return self._single(name) & ~self._drawn(name)

    def held_out(self, name: str) -> NDArray[np.bool_]:
        """Which rows of a part nobody trains on; of equal ones no more are held out than would be kept."""
        return self._single(name) & self._drawn(name)

    def _drawn(self, name: str) -> NDArray[np.bool_]:
        """Which rows fall to those that are held out."""
        return (
            is_held_out(self.ids(name), self.holdout) if self.holdout else np.zeros(self.rows_of[name], bool)
        )

    def _single(self, name: str) -> NDArray[np.bool_]:
        """Which rows are not dropped duplicates."""
        keep = np.ones(self.rows_of[name], bool)
        path = dropped_path(Path(name)).name
        if path in self.record.files:
            keep[np.load(self.verify(path), allow_pickle=False)] = False
        return keep

    def columns(self, name: str, wanted: Sequence[str]) -> pa.Table:
        """Columns of a part."""
        self.verify(name)
        with open_parquet(self.stage, name) as file:
            return file.read(columns=list(wanted), use_threads=False)

    def ids(self, name: str) -> NDArray[np.uint8]:
        """(rows, 32) bytes of the ids of a part."""
        return np.concatenate([fixed_bytes(chunk) for chunk in self.columns(name, ["id"])["id"].chunks])

    def features(self, name: str) -> NDArray[Any]:
        """(rows, features) of a part, left on disk until they are looked at."""
        own = features_path(Path(name)).name
        path = self.verify(own) if self._features is None else self._features.verify(own)
        features: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return features

    def groups(self) -> Iterator[tuple[str, int, slice]]:
        """Every row group: its part, its number, and its rows of the part."""
        size = self.contents.group
        for name in self.names:
            for number, start in enumerate(range(0, self.rows_of[name], size)):
                yield name, number, slice(start, min(start + size, self.rows_of[name]))

    def read_group(self, name: str, number: int) -> pa.Table:
        """All columns of one row group."""
        with open_parquet(self.stage, name) as file:
            return file.read_row_group(number, use_threads=False)


@contextlib.contextmanager
def writing(
    stage: Stage, made_from: Mapping[str, Any], begin: Callable[[], bool] | None = None
) -> Iterator[bool]:
    """Alone at a stage that is written part by part: whether anything of it is left to do.

    Whatever goes wrong, finished parts stay and the next call goes on from them; half a part does not.
    """
    if stage.current(made_from):  # several may look at once
        yield False
        return
    with alone(stage.path):
        if not (begin() if begin else stage.begin(made_from)):
            yield False
            return
        remove_partial(stage.path)
        with _kept(stage):
            yield True


@contextlib.contextmanager
def _kept(stage: Stage) -> Iterator[None]:
    """A stage of which nothing is finished goes with the mistake that stopped it; a full disk is named."""
    try:
        yield
    except AtollError:
        if not any(stage.path.rglob("*.parquet")):
            shutil.rmtree(stage.path, ignore_errors=True)
        raise
    except OSError as error:
        if is_full(error):
            raise DataError(
                f"no space left for {stage.path}; free some and run the same command again"
            ) from None
        raise


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for path in list(folder.rglob(".*.partial")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_alike(first: Sample, sample: Sample) -> None:
    """Samples of different shapes cannot be trained on together."""
    if sample.values.shape != first.values.shape or sample.values.dtype != first.values.dtype:
        raise DataError(
            f"{sample.name} is {_size(sample)} but {first.name} is {_size(first)}; "
            "set data.size, and data.channels if need be, to make them alike"
        )


def _size(sample: Sample) -> str:
    return f"{' x '.join(map(str, sample.values.shape))} {sample.values.dtype}"

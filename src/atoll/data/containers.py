"""Samples packed many to a file: Parquet, WebDataset tars, datasets of the Hub."""

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from atoll.config import DataConfig
from atoll.data import pictures
from atoll.data.borrowed import require
from atoll.data.samples import (
    CAPTION_FIELDS,
    LABEL_FIELDS,
    SAMPLE_FIELDS,
    Sample,
    Shaper,
    Skipped,
    choose_field,
    label_text,
)
from atoll.errors import DataError

PEEK = 16
"""So many samples are tried for one that shows what the source holds."""
MAX_MEMBER = 2**30
"""Files in a tar that are larger than this are skipped unread."""


class Columns:
    """Which fields of a record are sample, label and caption, and how a record becomes a sample."""

    def __init__(self, names: Sequence[str], config: DataConfig, origin: str) -> None:
        sample = choose_field(names, config.sample_field, SAMPLE_FIELDS, "sample_field")
        if sample is None:
            raise DataError(f"{origin} has fields {', '.join(names)}; name the samples by data.sample_field")
        self.sample = sample
        self.label = choose_field(names, config.label_field, LABEL_FIELDS, "label_field")
        self.caption = choose_field(names, config.caption_field, CAPTION_FIELDS, "caption_field")
        self.class_names: tuple[str, ...] = ()
        self.byte_arrays = False

    def learn_type(self, schema: pa.Schema) -> None:
        """Arrays come out of Parquet as Python's integers; only the schema knows that they were bytes."""
        kind = schema.field(self.sample).type
        while not pa.types.is_primitive(kind) and (inner := inner_type(kind)) is not None:
            kind = inner
        self.byte_arrays = kind == pa.uint8()

    def raw(self, record: Mapping[str, Any]) -> Any:
        """The sample of a record: bytes of a picture, or an array."""
        return cell_value(record.get(self.sample), byte_array=self.byte_arrays)

    @property
    def names(self) -> list[str]:
        """The fields that are read."""
        return [name for name in (self.sample, self.label, self.caption) if name is not None]

    def to_sample(self, record: Mapping[str, Any], name: str, shaper: Shaper) -> Sample | Skipped:
        """One record as a sample."""
        try:
            values = shaper.values(self.raw(record))
        except pictures.PictureError as error:
            return Skipped(name, str(error))
        label = label_text(record.get(self.label), self.class_names) if self.label else None
        caption = record.get(self.caption) if self.caption else None
        return Sample(name, values, label, None if caption is None else str(caption))


def inner_type(kind: pa.DataType) -> pa.DataType | None:
    """What a list, or a tensor of the Hub's, is made of."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return kind.value_type if lists else None


def cell_value(cell: Any, *, byte_array: bool) -> Any:
    """What a cell holds: bytes of a picture (the Hub wraps them with their path), or an array."""
    if isinstance(cell, Mapping):
        cell = cell.get("bytes")
    if cell is None:
        raise pictures.PictureError("there is no sample")
    if isinstance(cell, str):
        raise pictures.PictureError("the sample is text")
    if isinstance(cell, bytes):
        return cell
    try:
        return np.asarray(cell, dtype=np.uint8 if byte_array else None)
    except (ValueError, TypeError):
        raise pictures.PictureError("the array is ragged") from None


class ParquetSource:
    """Rows of Parquet files; every file is a piece."""

    def __init__(self, files: Sequence[Path], config: DataConfig, identity: str) -> None:
        self.files, self.identity = list(files), identity
        metadata = [self._metadata(file) for file in self.files]
        self.rows: int | None = sum(data.num_rows for data in metadata)
        schema = metadata[0].schema.to_arrow_schema()
        self.columns = Columns(schema.names, config, str(files[0]))
        self.columns.class_names = hub_class_names(schema, self.columns.label)
        self.columns.learn_type(schema)
        self.class_names = self.columns.class_names
        self.shaper = Shaper(config, self._examples(), str(files[0]))
        self.kind = self.shaper.kind

    @staticmethod
    def _metadata(file: Path) -> Any:
        try:
            return pq.read_metadata(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{file} cannot be read ({_first_line(error)}); give a whole Parquet file"
            ) from None

    def _examples(self) -> Iterator[Callable[[], Any]]:
        for record, _ in islice(self._records(0, 0), PEEK):
            yield partial(self.columns.raw, record)

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return len(self.files)

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        for record, row in self._records(piece, start):
            yield self.columns.to_sample(record, f"{self.files[piece].name}[{row}]", self.shaper)

    def _records(self, piece: int, start: int) -> Iterator[tuple[dict[str, Any], int]]:
        try:
            with pq.ParquetFile(self.files[piece]) as file:
                first = 0
                for group in range(file.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    if first + rows > start:
                        batches = file.iter_batches(64, [group], self.columns.names, use_threads=False)
                        records = (record for batch in batches for record in batch.to_pylist())
                        for row, record in enumerate(records, first):
                            if row >= start:
                                yield record, row
                    first += rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.files[piece]} cannot be read ({_first_line(error)}); give a whole Parquet file"
            ) from None


def hub_class_names(schema: pa.Schema, label: str | None) -> tuple[str, ...]:
    """The names of labels where the Hub's `datasets` wrote the file."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return tuple(features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


class TarSource:
    """WebDataset tars: files that share a name up to the first dot are one sample; every tar is a piece."""

    class_names: tuple[str, ...] = ()
    rows: int | None = None

    def __init__(self, files: Sequence[Path], config: DataConfig, identity: str) -> None:
        self.files, self.identity, self.config = list(files), identity, config
        first = next((record for file in files for _, record in self._records(file, 0) if record), None)
        if first is None:
            raise DataError(f"{files[0]} holds no samples; give tars with jpg, png, webp or npy files")
        self.shaper = Shaper(config, self._examples(), str(files[0]))
        self.kind = self.shaper.kind

    def _examples(self) -> Iterator[Callable[[], Any]]:
        records = (record for file in self.files for _, record in self._records(file, 0))
        for record in islice(records, PEEK):
            yield partial(tar_value, record, self.config)

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return len(self.files)

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        for key, record in self._records(self.files[piece], start):
            name = f"{self.files[piece].name}/{key}"
            if record is None:
                yield Skipped(name, "the archive is broken here, what follows is lost")
                continue
            try:
                values = self.shaper.values(tar_value(record, self.config))
            except pictures.PictureError as error:
                yield Skipped(name, str(error))
            else:
                yield Sample(name, values, *tar_said(record, self.config))

    def _records(self, path: Path, start: int) -> Iterator[tuple[str, dict[str, bytes] | None]]:
        """(key, ending → bytes) of each sample; a broken archive ends with (key, None)."""
        key = "(start)"
        try:
            with tarfile.open(path, "r:*") as tar:
                files = (member for member in tar if member.isfile() and not _hidden(member.name))
                for number, (key, members) in enumerate(
                    groupby(files, lambda member: split_name(member.name)[0])
                ):
                    if number < start:
                        for _ in members:
                            pass
                    else:
                        yield key, {split_name(member.name)[1]: _contents(tar, member) for member in members}
        except (tarfile.TarError, EOFError, OSError, zlib.error):
            yield key, None


def split_name(name: str) -> tuple[str, str]:
    """`a/b.seg.png` as key `a/b` and ending `seg.png`, as WebDataset does."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def tar_value(record: Mapping[str, bytes] | None, config: DataConfig) -> Any:
    """The sample of a record: bytes of a picture, or an array."""
    if record is None:
        raise pictures.PictureError("there is no sample")
    field = choose_ending(record, config.sample_field, SAMPLE_FIELDS)
    if field is None:
        raise pictures.PictureError(f"no picture among {', '.join(sorted(record))}")
    if not field.endswith("npy"):
        return record[field]
    try:
        return np.load(io.BytesIO(record[field]), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise pictures.PictureError(f"not a plain array ({error})") from None


def tar_said(record: Mapping[str, bytes], config: DataConfig) -> tuple[str | None, str | None]:
    """Label and caption of a record, from files of their own or from its json."""
    said: dict[str, Any] = {}
    try:
        loaded = json.loads(record.get("json", b"{}"))
        said.update(loaded if isinstance(loaded, dict) else {})
    except ValueError:
        pass  # a sample is worth having without what was said of it
    said.update(
        {ending: text.decode(errors="replace") for ending, text in record.items() if ending != "json"}
    )
    label = choose_ending(said, config.label_field, LABEL_FIELDS)
    caption = choose_ending(said, config.caption_field, CAPTION_FIELDS)
    return (
        label_text(said[label]) if label is not None else None,
        str(said[caption]).strip() if caption is not None else None,
    )


def choose_ending(record: Mapping[str, Any], asked: str | None, usual: Sequence[str]) -> str | None:
    """Which of a record's fields to take; records may differ, so a missing one is no mistake."""
    return next((name for name in ((asked,) if asked is not None else usual) if name in record), None)


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "__")) and part != "." for part in name.split("/"))


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member) if member.size <= MAX_MEMBER else None
    contents = file.read() if file is not None else b""
    if file is not None and len(contents) != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return contents


class HubSource:
    """A dataset of the Hub, or a folder in its layout, streamed; each of its files is a piece."""

    rows: int | None = None

    def __init__(self, name: str, config: DataConfig) -> None:
        self.name = name
        datasets = require("datasets", f"data.source 'hub:{name}'")
        try:
            builder = datasets.load_dataset_builder(name, config.subset)
            stream = builder.as_streaming_dataset(split=config.split)
        except (OSError, ValueError) as error:
            raise DataError(
                f"data.source 'hub:{name}' (subset {config.subset}, split {config.split}) cannot be opened: "
                f"{_first_line(error)}; check name, network and token"
            ) from None
        self.identity = f"{builder.hash} {config.split}"
        features = stream.features or stream._resolve_features().features
        self.columns = Columns(list(features), config, f"hub:{name}")
        if self.columns.label is not None:
            self.columns.class_names = tuple(getattr(features[self.columns.label], "names", None) or ())
        self.class_names = self.columns.class_names
        if isinstance(features[self.columns.sample], datasets.Image):
            # Undecoded, so that broken pictures are ours to skip and name.
            stream = stream.cast_column(self.columns.sample, datasets.Image(decode=False))
        self.stream = stream.select_columns(self.columns.names)
        self.columns.learn_type(features.arrow_schema)
        examples = (partial(self.columns.raw, record) for record in islice(self.stream, PEEK))
        self.shaper = Shaper(config, examples, f"hub:{name}")
        self.kind = self.shaper.kind

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return int(self.stream.num_shards)

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        records = self.stream.shard(num_shards=self.pieces, index=piece).skip(start)
        for row, record in enumerate(records, start):
            yield self.columns.to_sample(record, f"{self.name}/{piece}[{row}]", self.shaper)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

"""Samples packed many to a file: Parquet, WebDataset tars, datasets of the Hub."""

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from atoll.config import DataConfig
from atoll.data import pictures, tars
from atoll.data.arrow import check_ends
from atoll.data.borrowed import require
from atoll.data.hub import check_reachable
from atoll.data.reading import Stream, file_state, patiently, resumed
from atoll.data.samples import (
    CAPTION_FIELDS,
    LABEL_FIELDS,
    SAMPLE_FIELDS,
    Sample,
    Skipped,
    choose_field,
    label_text,
)
from atoll.data.shaping import Shaper
from atoll.errors import DataError, reason

PEEK = 16
"""So many samples are tried for one that shows what the source holds."""


class Columns:
    """Which fields of a record are sample, label and caption, and how a record becomes a sample."""

    def __init__(
        self, names: Sequence[str], config: DataConfig, origin: str, named: Mapping[str, tuple[str, ...]]
    ) -> None:
        """`named` has the names of classes by field, where the source knows them."""
        sample = choose_field(names, config.sample_field, SAMPLE_FIELDS, "sample_field")
        if sample is None:
            raise DataError(f"{origin} has fields {', '.join(names)}; name the samples by data.sample_field")
        self.sample = sample
        only = tuple(named) if len(named) == 1 else ()
        self.label = choose_field(names, config.label_field, (*LABEL_FIELDS, *only), "label_field")
        self.caption = choose_field(names, config.caption_field, CAPTION_FIELDS, "caption_field")
        self.class_names = named.get(self.label or "", ())
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
            shaped = shaper(self.raw(record))
        except pictures.PictureError as error:
            return Skipped(name, str(error))
        label = label_text(record.get(self.label), self.class_names) if self.label else None
        caption = record.get(self.caption) if self.caption else None
        return Sample(name, shaped.values, label, None if caption is None else str(caption), shaped.remarks)


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


class FilesSource:
    """Files of which every one is a piece."""

    def __init__(self, files: Sequence[Path], identity: str) -> None:
        self.files, self.identity = list(files), identity
        self.ignored: Mapping[str, int] = {}

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return len(self.files)

    def piece_identity(self, piece: int) -> str:
        """What changes when the samples of one piece do."""
        return file_state([self.files[piece]])


class ParquetSource(FilesSource):
    """Rows of Parquet files."""

    def __init__(self, files: Sequence[Path], config: DataConfig, identity: str) -> None:
        super().__init__(files, identity)
        metadata = [self._metadata(file) for file in self.files]
        self.rows: int | None = sum(data.num_rows for data in metadata)
        schema = metadata[0].schema.to_arrow_schema()
        self.columns = Columns(schema.names, config, str(files[0]), hub_class_names(schema))
        self.columns.learn_type(schema)
        self.class_names = self.columns.class_names
        self.shaper = Shaper(config, self._examples(), str(files[0]), self.columns.sample)
        self.kind, self.span, self.notes = self.shaper.kind, self.shaper.span, self.shaper.notes

    @staticmethod
    def _metadata(file: Path) -> Any:
        try:
            return patiently(partial(pq.read_metadata, file), file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file} cannot be read ({reason(error)}); give a whole Parquet file") from None

    def _examples(self) -> Iterator[Callable[[], Any]]:
        for record, _ in islice(self._records(0, 0), PEEK):
            yield partial(self.columns.raw, record)

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        for record, row in self._records(piece, start):
            yield self.columns.to_sample(record, f"{self.files[piece].name}[{row}]", self.shaper)

    def _records(self, piece: int, start: int) -> Iterator[tuple[dict[str, Any], int]]:
        try:
            yield from resumed(partial(self._rows, piece), start, self.files[piece])
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.files[piece]} cannot be read ({reason(error)}); give a whole Parquet file"
            ) from None

    def _rows(self, piece: int, start: int) -> Iterator[tuple[dict[str, Any], int]]:
        """Records and their numbers; an error where there are not as many as the file says."""
        with pq.ParquetFile(self.files[piece], page_checksum_verification=True) as file:
            first = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if first + rows > start:
                    batches = file.iter_batches(64, [group], self.columns.names, use_threads=False)
                    row = first
                    for record in (record for batch in batches for record in batch.to_pylist()):
                        if row >= start:
                            yield record, row
                        row += 1
                    if row != first + rows:
                        raise pa.ArrowInvalid(f"{row - first} of {rows} rows in group {group}")
                first += rows
            if first != file.metadata.num_rows:
                raise pa.ArrowInvalid(f"{first} of {file.metadata.num_rows} rows")


def hub_class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """The names of classes by field, where the Hub's `datasets` wrote the file."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {field: tuple(kind["names"]) for field, kind in features.items() if "names" in kind}
    except (KeyError, TypeError, ValueError):
        return {}


class TarSource(FilesSource):
    """WebDataset tars: files that share a name up to the first dot are one sample."""

    class_names: tuple[str, ...] = ()

    def __init__(self, files: Sequence[Path], config: DataConfig, identity: str) -> None:
        super().__init__(files, identity)
        self.config = config
        self.tars = [tars.Tar(file) for file in files]
        promised = [tar.expected for tar in self.tars]
        self.rows: int | None = None if None in promised else sum(count or 0 for count in promised)
        examples = list(islice(self._examples(), PEEK))
        if not examples:
            raise DataError(f"{files[0]} holds no samples; give tars with jpg, png, webp or npy files")
        self.shaper = Shaper(config, examples, str(files[0]), config.sample_field)
        self.kind, self.span, self.notes = self.shaper.kind, self.shaper.span, self.shaper.notes

    def _examples(self) -> Iterator[Callable[[], Any]]:
        for tar in self.tars:
            with Stream(tar.path) as stream:
                for item in tar.items(stream):
                    if isinstance(item, tars.Record) and not item.torn:
                        with contextlib.suppress(pictures.PictureError):
                            yield partial(tar_value, tars.contents(stream, item), self.config)

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        tar, position, key = self.tars[piece], 0, "(start)"
        with Stream(tar.path) as stream:
            for item in tar.items(stream):
                if isinstance(item, tars.Lost):
                    for number in range(max(0, start - position), item.count):
                        name = f"{tar.path.name}/(lost {number + 1} of {item.count} after {key})"
                        yield Skipped(name, item.reason, item.unknown)
                    position += item.count
                    continue
                key = item.key
                if position >= start:
                    yield self._sample(stream, item, f"{tar.path.name}/{key}")
                position += 1

    def _sample(self, stream: Stream, record: tars.Record, name: str) -> Sample | Skipped:
        try:
            files = tars.contents(stream, record)
            shaped = self.shaper(tar_value(files, self.config))
        except pictures.PictureError as error:
            return Skipped(name, str(error))
        return Sample(name, shaped.values, *tar_said(files, self.config), shaped.remarks)


def tar_value(record: Mapping[str, bytes], config: DataConfig) -> Any:
    """The sample of a record: bytes of a picture, or an array."""
    field = choose_ending(record, config.sample_field, SAMPLE_FIELDS)
    if field is None:
        raise pictures.PictureError(f"no picture among {', '.join(sorted(record))}")
    if not field.endswith("npy"):
        return record[field]
    try:
        return np.load(io.BytesIO(record[field]), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise pictures.PictureError(f"not a plain array ({reason(error)})") from None


def tar_said(record: Mapping[str, bytes], config: DataConfig) -> tuple[str | None, str | None]:
    """Label and caption of a record, from files of their own or from its json."""
    fields: dict[str, Any] = {}
    try:
        loaded = json.loads(record.get("json", b"{}"))
        fields.update(loaded if isinstance(loaded, dict) else {})
    except ValueError:
        pass  # a sample is worth having without what was said of it
    fields.update(
        {ending: text.decode(errors="replace") for ending, text in record.items() if ending != "json"}
    )
    label = choose_ending(fields, config.label_field, LABEL_FIELDS)
    caption = choose_ending(fields, config.caption_field, CAPTION_FIELDS)
    return (
        label_text(fields[label]) if label is not None else None,
        str(fields[caption]).strip() if caption is not None else None,
    )


def choose_ending(record: Mapping[str, Any], field: str | None, usual: Sequence[str]) -> str | None:
    """Which of a record's fields to take; records may differ, so a missing one is no mistake."""
    return next((name for name in ((field,) if field is not None else usual) if name in record), None)


class HubSource:
    """A dataset of the Hub, or a folder in its layout, streamed; each of its files is a piece."""

    def __init__(self, name: str, config: DataConfig) -> None:
        self.name = name
        check_reachable(name)  # before what takes seconds to load
        datasets = require("datasets", f"data.source 'hub:{name}'")
        try:
            self._open(datasets, config)
        except DataError:
            raise
        except Exception as error:  # `datasets` and its readers raise nearly anything
            raise DataError(
                f"data.source 'hub:{name}' (subset {config.subset}, split {config.split}) cannot be opened: "
                f"{reason(error)}; check name, network and token"
            ) from None

    def _open(self, datasets: Any, config: DataConfig) -> None:
        builder = datasets.load_dataset_builder(self.name, config.subset)
        stream = builder.as_streaming_dataset(split=config.split)
        check_ends((builder.config.data_files or {}).get(config.split, ()))
        self.identity = f"{builder.hash} {config.split}"
        promised = (builder.info.splits or {}).get(config.split)
        self.rows: int | None = (promised.num_examples or None) if promised else None
        features = stream.features or stream._resolve_features().features
        named = {field: tuple(kind.names) for field, kind in features.items() if getattr(kind, "names", None)}
        self.columns = Columns(list(features), config, f"hub:{self.name}", named)
        self.class_names = self.columns.class_names
        if isinstance(features[self.columns.sample], datasets.Image):
            # Undecoded, so that broken pictures are ours to skip and name.
            stream = stream.cast_column(self.columns.sample, datasets.Image(decode=False))
        self.stream = stream.select_columns(self.columns.names)
        self.columns.learn_type(features.arrow_schema)
        examples = (partial(self.columns.raw, record) for record in islice(self.stream, PEEK))
        self.shaper = Shaper(config, examples, f"hub:{self.name}", self.columns.sample)
        self.kind, self.span, self.notes = self.shaper.kind, self.shaper.span, self.shaper.notes
        self.ignored: Mapping[str, int] = {}

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return int(self.stream.num_shards)

    def piece_identity(self, piece: int) -> str:
        """What changes when the samples of one piece do."""
        return self.identity

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        records = self.stream.shard(num_shards=self.pieces, index=piece).skip(start)
        try:
            for row, record in enumerate(records, start):
                yield self.columns.to_sample(record, f"{self.name}/{piece}[{row}]", self.shaper)
        except Exception as error:
            raise DataError(
                f"data.source 'hub:{self.name}' cannot be read on ({reason(error)}); run it again"
            ) from None

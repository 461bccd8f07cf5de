"""Where samples come from: embedded sets, folders, arrays, Parquet, tars, Hub datasets."""

import csv
import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atoll.config import DataConfig
from atoll.data import pictures
from atoll.data.containers import HubSource, ParquetSource, TarSource
from atoll.data.identity import (
    CONTAINERS,
    EMBEDDED,
    HUB,
    METADATA,
    container_of,
    find_files,
    identity_of_files,
    idx_files,
    is_beside,
    is_picture,
)
from atoll.data.reading import file_state, read_bytes
from atoll.data.samples import (
    CAPTION_FIELDS,
    LABEL_FIELDS,
    SAMPLE_FIELDS,
    Array,
    Kind,
    Sample,
    Shaper,
    Skipped,
    Source,
    choose_field,
    label_text,
)
from atoll.errors import DataError, reason

IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def open_source(config: DataConfig) -> Source:
    """Find out what `data.source` names, and open it."""
    if config.source in EMBEDDED:
        return ArraySource.of_npz(EMBEDDED[config.source], config)
    if config.source.startswith(HUB):
        return HubSource(config.source.removeprefix(HUB), config)
    files = find_files(config.source)
    root = Path(config.source).expanduser()
    if root.is_dir() and any(is_picture(file) for file in files):
        return FolderSource(root, files, config)
    kind = container_of(config.source, files)
    fitting = [file for file in files if CONTAINERS[kind](file)]
    opened: dict[str, Callable[[Sequence[Path], DataConfig, str], Source]] = {
        "tar": TarSource,
        "parquet": ParquetSource,
        "idx": ArraySource.of_idx,
    }
    return opened.get(kind, ArraySource.of_one)(fitting, config, identity_of_files(fitting))


class FolderSource:
    """Images in a folder; sub-folders are labels, side-car .txt files or a metadata table have captions."""

    kind: Kind = "image"

    def __init__(self, root: Path, files: Sequence[Path], config: DataConfig) -> None:
        self.root, self.piece = root, config.part
        self.files = [file for file in files if is_picture(file)]
        self.rows: int | None = len(self.files)
        self.said = read_metadata([file for file in files if file.name in METADATA], config)
        self.others = [file for file in files if is_beside(file)]
        self.class_names: tuple[str, ...] = ()
        self.shaper = Shaper(config, (partial(read_bytes, file) for file in self.files), str(root))

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return -(-len(self.files) // self.piece)

    @property
    def identity(self) -> str:
        """A digest of names and contents."""
        return identity_of_files([*self.files, *self.others], self.root)

    def piece_identity(self, piece: int) -> str:
        """What changes when the samples of one piece do."""
        return file_state(self.files[piece * self.piece : (piece + 1) * self.piece])

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        for file in self.files[piece * self.piece + start : (piece + 1) * self.piece]:
            name = file.relative_to(self.root).as_posix()
            try:
                yield Sample(name, self.shaper.values(read_bytes(file)), *self._said_of(file))
            except (pictures.PictureError, OSError) as error:
                yield Skipped(name, str(error))

    def _said_of(self, file: Path) -> tuple[str | None, str | None]:
        """Label and caption of a file."""
        if self.said is not None:
            return self.said.get(file.resolve(), (None, None))
        beside = file.with_suffix(".txt")
        caption = read_bytes(beside).decode(errors="replace").strip() if beside.is_file() else None
        return "/".join(file.relative_to(self.root).parts[:-1]) or None, caption


def read_metadata(
    tables: Sequence[Path], config: DataConfig
) -> dict[Path, tuple[str | None, str | None]] | None:
    """Label and caption of each file that a table in the Hub's convention names; None without a table."""
    if not tables:
        return None
    said: dict[Path, tuple[str | None, str | None]] = {}
    for table in tables:
        rows = read_rows(table)
        if not rows or "file_name" not in rows[0]:
            raise DataError(f"{table} has no column 'file_name'; add it, or remove the table")
        names = list(rows[0])
        label = choose_field(names, config.label_field, LABEL_FIELDS, "label_field")
        caption = choose_field(names, config.caption_field, CAPTION_FIELDS, "caption_field")
        for row in rows:
            file = (table.parent / row["file_name"]).resolve()
            said[file] = (
                label_text(row.get(label)) if label else None,
                row.get(caption) if caption else None,
            )
    return said


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .csv or .jsonl file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".csv":
            return list(csv.DictReader(io.StringIO(text)))
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); repair it") from None


class ArraySource:
    """Samples that lie in arrays."""

    def __init__(
        self, values: Array, said: Mapping[str, Any], config: DataConfig, name: str, identity: str
    ) -> None:
        if len(values) == 0:
            raise DataError(f"{name} holds no samples; give one that does")
        for what, column in said.items():
            if len(column) != len(values):
                raise DataError(f"{name}: {len(values)} samples but {len(column)} {what}; give as many")
        self.name, self.piece, self.identity = name, config.part, identity
        self.array = values
        self.rows: int | None = len(values)
        self.labels, self.captions = said.get("labels"), said.get("captions")
        self.class_names: tuple[str, ...] = ()
        self.shaper = Shaper(config, [partial(np.asarray, values[0])], name)
        self.kind = self.shaper.kind

    @classmethod
    def of_npz(cls, path: Path, config: DataConfig) -> "ArraySource":
        """Open an .npz file of samples and perhaps labels, class_names and captions."""
        arrays = load_npz(path)
        names = list(arrays)
        large = [name for name in names if arrays[name].ndim > 1 and arrays[name].dtype.kind in "uif"]
        usual = (*SAMPLE_FIELDS, *(large if len(large) == 1 else ()))
        field = choose_field(names, config.sample_field, usual, "sample_field")
        if field is None or arrays[field].ndim < 2:
            raise DataError(f"{path} holds {', '.join(sorted(names))}; name the samples by data.sample_field")
        class_names = tuple(str(name) for name in arrays.get("class_names", ()))
        said: dict[str, list[Any]] = {}
        label = choose_field(names, config.label_field, LABEL_FIELDS, "label_field")
        if label is not None:
            said["labels"] = [label_text(value, class_names) for value in arrays[label].tolist()]
        caption = choose_field(names, config.caption_field, CAPTION_FIELDS, "caption_field")
        if caption is not None:
            said["captions"] = [str(value) for value in arrays[caption].tolist()]
        source = cls(arrays[field], said, config, path.name, identity_of_files([path]))
        source.class_names = class_names if label is not None else ()
        return source

    @classmethod
    def of_one(cls, files: Sequence[Path], config: DataConfig, identity: str) -> "ArraySource":
        """Open one .npz or .npy file; the latter stays on disk, so it may be larger than memory."""
        if len(files) > 1:
            raise DataError(f"{files[0].parent} holds {len(files)} {files[0].suffix} files; name one of them")
        if files[0].suffix == ".npz":
            return cls.of_npz(files[0], config)
        try:
            values = np.load(files[0], mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(
                f"{files[0]} cannot be read ({reason(error)}); give an .npy file of plain numbers"
            ) from None
        return cls(values, {}, config, files[0].name, identity)

    @classmethod
    def of_idx(cls, files: Sequence[Path], config: DataConfig, identity: str) -> "ArraySource":
        """Open MNIST-style idx files; images have their labels in a file of the same name."""
        found, beside = idx_files(files)
        values = np.concatenate([read_idx(file) for file in found]) if found else np.zeros((0, 1, 1))
        said = {}
        if beside:
            said["labels"] = [str(value) for file in beside for value in read_idx(file).tolist()]
            identity = identity_of_files([*found, *beside])
        return cls(values, said, config, files[0].name, identity)

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return -(-len(self.array) // self.piece)

    def piece_identity(self, piece: int) -> str:
        """What changes when the samples of one piece do."""
        return self.identity

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        for row in range(piece * self.piece + start, min((piece + 1) * self.piece, len(self.array))):
            name = f"{self.name}[{row}]"
            try:
                values = self.shaper.values(self.array[row])
            except pictures.PictureError as error:
                yield Skipped(name, str(error))
            else:
                label = self.labels[row] if self.labels is not None else None
                yield Sample(name, values, label, self.captions[row] if self.captions is not None else None)


def load_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file; pickled objects are refused."""
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read ({reason(error)}); give an .npz file of plain arrays"
        ) from None


def read_idx(path: Path) -> Array:
    """The array of an idx file, gzipped or not."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            zero, kind, rank = struct.unpack(">HBB", file.read(4))
            if zero or kind not in IDX_TYPES:
                raise ValueError("its first bytes are not those of an idx file")
            shape = struct.unpack(f">{rank}I", file.read(4 * rank))
            dtype = np.dtype(IDX_TYPES[kind])
            wanted = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            raw = file.read(wanted)
            if len(raw) != wanted:
                raise ValueError(f"it ends after {len(raw)} of {wanted} bytes")
    except (OSError, ValueError, EOFError, struct.error) as error:
        raise DataError(f"{path} cannot be read ({error}); give a whole idx file") from None
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)

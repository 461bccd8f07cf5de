"""Samples that lie in arrays: .npz, .npy and idx files."""

import gzip
import math
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from atoll.config import DataConfig
from atoll.data import pictures
from atoll.data.identity import identity_of_files, idx_files
from atoll.data.reading import patiently
from atoll.data.samples import (
    CAPTION_FIELDS,
    LABEL_FIELDS,
    SAMPLE_FIELDS,
    Array,
    Sample,
    Skipped,
    choose_field,
    label_text,
)
from atoll.data.shaping import EXAMPLES, Shaper
from atoll.errors import DataError, reason

CLASS_FIELDS = ("class_names", "label_names", "classes", "names")
"""Arrays that may hold the names of classes."""
Loaded = TypeVar("Loaded")
IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class ArraySource:
    """Samples that lie in arrays."""

    def __init__(
        self,
        values: Array,
        columns: Mapping[str, Sequence[Any] | Array],
        config: DataConfig,
        name: str,
        identity: str,
        field: str | None = None,
    ) -> None:
        if len(values) == 0:
            raise DataError(f"{name} holds no samples; give one that does")
        for what, column in columns.items():
            if len(column) != len(values):
                raise DataError(f"{name}: {len(values)} samples but {len(column)} {what}; give as many")
        self.name, self.piece, self.identity = name, config.part, identity
        self.array = values
        self.rows: int | None = len(values)
        self.labels, self.captions = columns.get("labels"), columns.get("captions")
        self.class_names: tuple[str, ...] = ()
        self.shift = 0
        """The label of the first of these names."""
        # From all over the array: its first samples may all be dark, or of one class.
        rows = np.unique(np.linspace(0, len(values) - 1, EXAMPLES).round().astype(int))
        self.shaper = Shaper(config, [partial(np.asarray, values[row]) for row in rows], name, field)
        self.kind, self.span, self.notes = self.shaper.kind, self.shaper.span, self.shaper.notes
        self.ignored: Mapping[str, int] = {}

    @classmethod
    def of_npz(cls, path: Path, config: DataConfig) -> "ArraySource":
        """Open an .npz file of samples and perhaps labels, names of classes and captions."""
        arrays = load_npz(path)
        names = list(arrays)
        large = [name for name in names if arrays[name].ndim > 1 and arrays[name].dtype.kind in "buif"]
        usual = (*SAMPLE_FIELDS, *(large if len(large) == 1 else ()))
        field = choose_field(names, config.sample_field, usual, "sample_field")
        if field is None or arrays[field].ndim < 2:
            shown = ", ".join(f"{name} {arrays[name].shape}" for name in sorted(names))
            raise DataError(
                f"{path} holds {shown}; name the samples, of rank 2 or more, by data.sample_field"
            )
        columns: dict[str, Array] = {}
        label = choose_field(names, config.label_field, LABEL_FIELDS, "label_field")
        if label is not None:
            columns["labels"] = arrays[label]
        caption = choose_field(names, config.caption_field, CAPTION_FIELDS, "caption_field")
        if caption is not None:
            columns["captions"] = arrays[caption]
        source = cls(arrays[field], columns, config, path.name, identity_of_files([path]), field)
        if label is not None:
            source._name_classes(arrays, label)
        return source

    def _name_classes(self, arrays: Mapping[str, Array], label: str) -> None:
        """Find the names of the classes, and with which number they begin."""
        labels = arrays[label]
        for field in CLASS_FIELDS:
            names = arrays.get(field)
            if field == label or names is None or names.ndim != 1 or names.dtype.kind not in "US":
                continue
            of_samples = field in ("classes", "names") and len(names) == len(labels)
            if labels.dtype.kind not in "ui" or of_samples or len(np.unique(names)) != len(names):
                continue
            low, high = int(labels.min()), int(labels.max())
            self.shift = 1 if low >= 1 and high == len(names) else 0
            if low >= 0 and high < len(names) + self.shift:
                self.class_names = tuple(label_text(name) or "" for name in names)
                begin = f", beginning with {self.shift}" if self.shift else ""
                self.notes += (f"classes are named by '{field}'{begin}",)
                return

    @classmethod
    def of_one(cls, files: Sequence[Path], config: DataConfig, identity: str) -> "ArraySource":
        """Open one .npz or .npy file; the latter stays on disk, so it may be larger than memory."""
        if len(files) > 1:
            raise DataError(f"{files[0].parent} holds {len(files)} {files[0].suffix} files; name one of them")
        if files[0].suffix == ".npz":
            return cls.of_npz(files[0], config)
        return cls(load_npy(files[0]), {}, config, files[0].name, identity, files[0].stem)

    @classmethod
    def of_idx(cls, files: Sequence[Path], config: DataConfig, identity: str) -> "ArraySource":
        """Open MNIST-style idx files; images have their labels in a file of the same name."""
        pictured, beside = idx_files(files)
        values = np.concatenate([read_idx(file) for file in pictured]) if pictured else np.zeros((0, 1, 1))
        columns = {}
        if beside:
            columns["labels"] = np.concatenate([read_idx(file) for file in beside])
            identity = identity_of_files([*pictured, *beside])
        field = "images" if all("images" in file.name for file in pictured) else None
        return cls(values, columns, config, files[0].name, identity, field)

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
                shaped = self.shaper(self.array[row])
            except pictures.PictureError as error:
                yield Skipped(name, str(error))
            else:
                caption = None if self.captions is None else label_text(self.captions[row])
                yield Sample(name, shaped.values, self._label(row), caption, shaped.remarks)

    def _label(self, row: int) -> str | None:
        if self.labels is None:
            return None
        value = self.labels[row]
        return label_text(value - self.shift if self.class_names else value, self.class_names)


def load_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, each with its checksum checked; pickled objects are refused."""

    def load() -> dict[str, Array]:
        arrays = {}
        with zipfile.ZipFile(path) as file:
            for info in file.infolist():
                with file.open(info) as member:
                    name = info.filename.removesuffix(".npy")
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                    if member.read(1):  # to the end, where the checksum is
                        raise ValueError(f"'{name}' is longer than its header says")
            if not arrays:
                raise ValueError("it is empty")
        return arrays

    return _loaded(load, path, "an .npz file of plain arrays")


def load_npy(path: Path) -> Array:
    """The array of an .npy file, left on disk; pickled objects and files of another length are refused."""

    def load() -> Array:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(values, np.memmap) or values.offset + values.nbytes != path.stat().st_size:
            raise ValueError("it has another length than its header says")
        return values

    return _loaded(load, path, "an .npy file of plain numbers")


def read_idx(path: Path) -> Array:
    """The array of an idx file, gzipped or not."""

    def load() -> Array:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            zero, kind, rank = struct.unpack(">HBB", file.read(4))
            if zero or kind not in IDX_TYPES:
                raise ValueError("its first bytes are not those of an idx file")
            shape = struct.unpack(f">{rank}I", file.read(4 * rank))
            dtype = np.dtype(IDX_TYPES[kind])
            wanted = math.prod(shape) * dtype.itemsize
            raw = file.read()  # to the end: what is too much is as wrong as what is missing
            if len(raw) != wanted:
                raise ValueError(f"it has {len(raw)} bytes of values where its header says {wanted}")
        values = np.frombuffer(raw, dtype).reshape(shape)
        return values.astype(dtype.newbyteorder("="), copy=False)

    return _loaded(load, path, "a whole idx file")


def _loaded(load: Callable[[], Loaded], path: Path, wanted: str) -> Loaded:
    """What a file holds, or one line that says what is wrong with it."""
    try:
        return patiently(load, path)
    except DataError:
        raise
    # numpy and zipfile raise nearly anything on hostile bytes: BadZipFile, KeyError, struct.error, …
    except Exception as error:
        raise DataError(f"{path} cannot be read ({reason(error)}); give {wanted}") from None

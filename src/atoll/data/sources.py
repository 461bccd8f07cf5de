"""Where samples come from: one small interface over embedded sets, folders and arrays."""

import hashlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.config import DataConfig
from atoll.data import pictures
from atoll.errors import DataError
from atoll.runs import digest, file_digest

Kind = Literal["image", "series", "video"]
Array = NDArray[Any]

EMBEDDED = {"fashion-5k": Path(__file__).with_name("fashion-5k.npz")}
PIECE = 32_768
"""Samples in a piece of a source that can be read from anywhere."""
HASH_LIMIT = 256 * 2**20
"""Sources up to this many bytes are known by their contents, larger ones by names, sizes and times."""


@dataclass(frozen=True)
class Sample:
    """One sample as the run will see it."""

    name: str
    """Where it came from, for people."""
    values: Array
    """(channels, *grid), uint8 or float32."""
    label: str | None = None
    caption: str | None = None

    @cached_property
    def id(self) -> bytes:
        """The sha256 of its values, so that equal samples have equal ids wherever they come from."""
        head = f"{self.values.dtype} {self.values.shape} ".encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.values).tobytes()).digest()


@dataclass(frozen=True)
class Skipped:
    """A sample that could not be used, and why."""

    name: str
    reason: str


class Source(Protocol):
    """Samples in a fixed order, in pieces that can be read independently and from any position."""

    kind: Kind
    class_names: tuple[str, ...]
    """Labels in their order where the source knows it; else empty, and labels are sorted."""

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        ...

    @property
    def identity(self) -> str:
        """A digest that changes when the samples do."""
        ...

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        ...


def open_source(config: DataConfig) -> Source:
    """Find out what `data.source` names, and open it."""
    if config.source in EMBEDDED:
        return ArraySource.of_npz(EMBEDDED[config.source], config)
    path = Path(config.source).expanduser()
    if path.is_dir():
        return FolderSource(path, config)
    if path.suffix == ".npz" and path.is_file():
        return ArraySource.of_npz(path, config)
    names = ", ".join(sorted(EMBEDDED))
    if not path.exists():
        raise DataError(
            f"data.source '{config.source}' is neither an embedded set ({names}) nor an existing path; "
            "give one of these"
        )
    raise DataError(f"data.source '{config.source}' is of no known kind; give an .npz file or a folder")


class FolderSource:
    """Images in a folder; sub-folders, if there are any, are the labels."""

    kind: Kind = "image"

    def __init__(self, path: Path, config: DataConfig) -> None:
        self.path = path
        self.files = sorted(
            (file for file in path.rglob("*") if file.suffix.lower() in pictures.SUFFIXES),
            key=lambda file: file.relative_to(path).as_posix(),
        )
        if not self.files:
            raise DataError(
                f"data.source '{path}' holds no images ({', '.join(sorted(pictures.SUFFIXES))}); "
                "give a folder that does"
            )
        self.class_names = tuple(sorted({label for file in self.files if (label := self._label(file))}))
        self.shaper = pictures.Shaper(config, (file.read_bytes for file in self.files))

    def _label(self, file: Path) -> str | None:
        folders = file.relative_to(self.path).parts[:-1]
        return "/".join(folders) if folders else None

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return -(-len(self.files) // PIECE)

    @property
    def identity(self) -> str:
        """A digest of names and contents."""
        return identity_of_files(self.files, self.path)

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        for file in self.files[piece * PIECE + start : (piece + 1) * PIECE]:
            name = file.relative_to(self.path).as_posix()
            try:
                values = self.shaper.decode(file.read_bytes())
            except (pictures.PictureError, OSError) as error:
                yield Skipped(name, str(error))
            else:
                yield Sample(name, values, self._label(file))


class ArraySource:
    """Samples that lie in one array."""

    def __init__(self, values: Array, labels: Sequence[str] | None, config: DataConfig, name: str) -> None:
        self.name = name
        self.values = values
        self.labels = labels
        self.class_names: tuple[str, ...] = ()
        self.kind: Kind = "image"
        self.file: Path | None = None
        self.shaper = pictures.Shaper(config, ())

    @classmethod
    def of_npz(cls, path: Path, config: DataConfig) -> "ArraySource":
        """Open an .npz file that holds `images` and perhaps `labels` and `class_names`."""
        arrays = load_npz(path)
        values = arrays.get("images")
        if values is None:
            raise DataError(f"{path} holds {', '.join(sorted(arrays))} but no 'images'; rename the array")
        if values.dtype != np.uint8 or values.ndim not in (3, 4) or len(values) == 0:
            raise DataError(
                f"{path}: images are {values.dtype} of shape {values.shape}; give uint8 "
                "of shape (n, height, width) or (n, height, width, channels)"
            )
        names = [str(name) for name in arrays.get("class_names", np.zeros(0, dtype="<U1"))]
        labels = None
        if "labels" in arrays:
            if len(arrays["labels"]) != len(values):
                raise DataError(
                    f"{path}: {len(values)} images but {len(arrays['labels'])} labels; give as many"
                )
            labels = [names[int(label)] if names else str(label) for label in arrays["labels"]]
        source = cls(values[..., None] if values.ndim == 3 else values, labels, config, path.name)
        source.class_names = tuple(names)
        source.file = path
        return source

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return -(-len(self.values) // PIECE)

    @property
    def identity(self) -> str:
        """A digest of the file."""
        assert self.file is not None
        return identity_of_files([self.file], self.file.parent)

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        for row in range(piece * PIECE + start, min((piece + 1) * PIECE, len(self.values))):
            values = self.shaper.shape(self.values[row])
            yield Sample(f"{self.name}[{row}]", values, self.labels[row] if self.labels else None)


def load_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file; pickled objects are refused."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{path} cannot be read ({error}); give an .npz file of plain arrays") from None


def identity_of_files(files: Sequence[Path], root: Path) -> str:
    """A digest of files: of their contents, or beyond 256 MiB of their sizes and times."""
    facts = [(file.relative_to(root).as_posix(), file.stat()) for file in files]
    if sum(stat.st_size for _, stat in facts) <= HASH_LIMIT:
        return digest([(name, file_digest(file)) for (name, _), file in zip(facts, files, strict=True)])
    return digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts])

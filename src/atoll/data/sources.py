"""Where samples come from: embedded sets, folders, arrays, Parquet, tars, Hub datasets."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atoll.config import DataConfig
from atoll.data import pictures
from atoll.data.arrays import ArraySource
from atoll.data.containers import HubSource, ParquetSource, TarSource
from atoll.data.identity import (
    CONTAINERS,
    EMBEDDED,
    HUB,
    METADATA,
    container_of,
    find_files,
    identity_of_files,
    is_beside,
    is_picture,
)
from atoll.data.reading import file_state, read_bytes
from atoll.data.samples import (
    CAPTION_FIELDS,
    LABEL_FIELDS,
    Kind,
    Sample,
    Skipped,
    Source,
    choose_field,
    label_text,
)
from atoll.data.shaping import Shaper
from atoll.errors import DataError


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
    source = opened.get(kind, ArraySource.of_one)(fitting, config, identity_of_files(fitting))
    source.ignored = endings({*files} - {*fitting} if root.is_dir() else ())
    return source


def endings(files: Iterable[Path]) -> dict[str, int]:
    """How many files of which ending there are, the most frequent first."""
    counts = Counter(file.suffix.lower() or file.name for file in files)
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


class FolderSource:
    """Images in a folder; sub-folders are labels, side-car .txt files or a metadata table have captions."""

    kind: Kind = "image"

    def __init__(self, root: Path, files: Sequence[Path], config: DataConfig) -> None:
        self.root, self.piece = root, config.part
        self.files = [file for file in files if is_picture(file)]
        self.rows: int | None = len(self.files)
        self._tables = {file for file in files if file.name in METADATA}
        self.metadata = read_metadata(sorted(self._tables), config)
        self.others = [file for file in files if is_beside(file)]
        self.class_names: tuple[str, ...] = ()
        self.shaper = Shaper(config, (partial(read_bytes, file) for file in self.files), str(root))
        self.span, self.notes = self.shaper.span, self.shaper.notes
        beside = {file.with_suffix(".txt") for file in self.files}
        captions = {file for file in self.others if file in beside} | self._tables
        self.ignored: Mapping[str, int] = endings({*files} - {*self.files} - captions)

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
                shaped = self.shaper(read_bytes(file))
                yield Sample(name, shaped.values, *self._said_of(file), shaped.remarks)
            except pictures.PictureError as error:
                yield Skipped(name, str(error))
            except OSError as error:
                yield Skipped(name, f"the file cannot be read ({error.strerror or type(error).__name__})")

    def _said_of(self, file: Path) -> tuple[str | None, str | None]:
        """Label and caption of a file."""
        if self.metadata is not None:
            return self.metadata.get(file.resolve(), (None, None))
        beside = file.with_suffix(".txt")
        caption = read_bytes(beside).decode(errors="replace").strip() if beside.is_file() else None
        return "/".join(file.relative_to(self.root).parts[:-1]) or None, caption


def read_metadata(
    tables: Sequence[Path], config: DataConfig
) -> dict[Path, tuple[str | None, str | None]] | None:
    """Label and caption of each file that a table in the Hub's convention names; None without a table."""
    if not tables:
        return None
    metadata: dict[Path, tuple[str | None, str | None]] = {}
    for table in tables:
        rows = read_rows(table)
        if not rows or "file_name" not in rows[0]:
            raise DataError(f"{table} has no column 'file_name'; add it, or remove the table")
        names = list(rows[0])
        label = choose_field(names, config.label_field, LABEL_FIELDS, "label_field")
        caption = choose_field(names, config.caption_field, CAPTION_FIELDS, "caption_field")
        for row in rows:
            file = (table.parent / row["file_name"]).resolve()
            metadata[file] = (
                label_text(row.get(label)) if label else None,
                row.get(caption) if caption else None,
            )
    return metadata


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .csv or .jsonl file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".csv":
            return list(csv.DictReader(io.StringIO(text)))
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); repair it") from None

"""Pictures in a folder: sub-folders are labels, texts beside them or a table have captions."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atoll.config import DataConfig
from atoll.data import pictures
from atoll.data.identity import identity_of_pictures
from atoll.data.listing import Listing
from atoll.data.reading import read_bytes
from atoll.data.samples import (
    CAPTION_FIELDS,
    LABEL_FIELDS,
    Kind,
    Sample,
    Skipped,
    choose_field,
    label_text,
)
from atoll.data.scratch_table import open_table
from atoll.data.shaping import Shaper
from atoll.errors import DataError

Said = tuple[str | None, str | None]
"""Label and caption of a picture."""


class FolderSource:
    """Images in a folder, in the order of their names; so many at a time are a piece."""

    kind: Kind = "image"

    def __init__(self, listing: Listing, config: DataConfig) -> None:
        self.listing, self.root, self.piece = listing, listing.root, config.part
        self.rows: int | None = listing.pictures
        tables = listing.tables()
        self.metadata = Metadata(tables, config) if tables else None
        self.class_names: tuple[str, ...] = ()
        files = (partial(read_bytes, self.root / file.name) for file in listing.some_pictures())
        self.shaper = Shaper(config, files, str(self.root))
        self.span = self.shaper.span
        self.notes = self.shaper.notes + (() if self.metadata is None else self.metadata.notes)
        self.ignored: Mapping[str, int] = listing.left_out()

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        return -(-self.listing.pictures // self.piece)

    @property
    def identity(self) -> str:
        """A digest of names and contents."""
        return identity_of_pictures(self.listing)

    def piece_identity(self, piece: int) -> str:
        """What changes when the samples of one piece do."""
        return self.listing.state(piece * self.piece, (piece + 1) * self.piece)

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        return self.read_between(piece * self.piece + start, (piece + 1) * self.piece)

    def read_between(self, first: int, last: int) -> Iterator[Sample | Skipped]:
        """The samples from one number up to another."""
        for listed in self.listing.some_pictures(first, last):
            name, file = listed.name, self.root / listed.name
            try:
                shaped = self.shaper(read_bytes(file))
                yield Sample(name, shaped.values, *self._said_of(file), shaped.remarks)
            except pictures.PictureError as error:
                yield Skipped(name, str(error))
            except OSError as error:
                yield Skipped(name, f"the file cannot be read ({error.strerror or type(error).__name__})")

    def _said_of(self, file: Path) -> Said:
        """Label and caption of a file."""
        if self.metadata is not None:
            return self.metadata.of(file)
        beside = file.with_suffix(".txt")
        caption = read_bytes(beside).decode(errors="replace").strip() if beside.is_file() else None
        return "/".join(file.relative_to(self.root).parts[:-1]) or None, caption


class Metadata:
    """What tables in the Hub's convention say of pictures, looked up on disk however long they are."""

    def __init__(self, tables: Sequence[Path], config: DataConfig) -> None:
        self.notes: tuple[str, ...] = ()
        """Of files that are named but not there."""
        self._said = open_table("CREATE TABLE said (file TEXT PRIMARY KEY, label TEXT, caption TEXT)")
        self._said.execute("BEGIN")
        for table in tables:
            self._take(table, config)
        self._said.execute("COMMIT")

    def __del__(self) -> None:
        if hasattr(self, "_said"):
            self._said.close()

    def of(self, file: Path) -> Said:
        """Label and caption of a file, where a table has them."""
        row = self._said.execute("SELECT label, caption FROM said WHERE file = ?", (_key(file),)).fetchone()
        return (None, None) if row is None else (row[0], row[1])

    def _take(self, table: Path, config: DataConfig) -> None:
        missing, first = 0, ""
        names: list[str] | None = None
        for number, row in enumerate(read_rows(table), 1):
            if not isinstance(row, dict) or not isinstance(row.get("file_name"), str):
                if names is None:
                    raise DataError(f"{table} has no column 'file_name'; add it, or remove the table")
                raise DataError(f"{table}: row {number} has no 'file_name'; add it, or remove the row")
            if names is None:
                names = list(row)
                label = choose_field(names, config.label_field, LABEL_FIELDS, "label_field")
                caption = choose_field(names, config.caption_field, CAPTION_FIELDS, "caption_field")
            file = table.parent / row["file_name"]
            if not file.exists():
                missing, first = missing + 1, first or row["file_name"]
            words = (
                label_text(row.get(label)) if label else None,
                _words(row.get(caption)) if caption else None,
            )
            self._said.execute("INSERT OR REPLACE INTO said VALUES (?, ?, ?)", (_key(file), *words))
        if names is None:
            raise DataError(f"{table} has no column 'file_name'; add it, or remove the table")
        if missing:
            self.notes += (f"{table.name} names {missing:,} files that are not there, first {first}",)


def read_rows(path: Path) -> Iterator[Any]:
    """The rows of a .csv or .jsonl file, one by one."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".csv":
                yield from csv.DictReader(file)
            else:
                yield from (json.loads(line) for line in file if line.strip())
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); repair it") from None


def _words(caption: Any) -> str | None:
    return None if caption is None else str(caption)


def _key(file: Path) -> str:
    """A file's own place, however it was named; as text that a database takes."""
    return ascii(str(file.resolve()))

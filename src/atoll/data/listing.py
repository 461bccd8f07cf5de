"""The files of a folder in the order of their names, listed on disk however many there are."""

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from atoll.data.reading import patiently
from atoll.data.scratch_table import open_table
from atoll.errors import DataError
from atoll.runs import digest, runs_folder

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
METADATA = frozenset({"metadata.csv", "metadata.jsonl"})
ENDINGS = 100
"""Different endings of files that are told apart."""
ROWS = 10_000
"""Rows that are written or read at once."""
PICTURE, CAPTION, TABLE, OTHER = range(4)
LAYOUT = """
CREATE TABLE folders (name BLOB);
CREATE TABLE found (name BLOB, kind INTEGER, stem INTEGER, size INTEGER, changed INTEGER);
CREATE TABLE files (kind INTEGER, name BLOB, stem INTEGER, size INTEGER, changed INTEGER);
"""


class File(NamedTuple):
    """A file as it was when the folder was listed."""

    name: str
    """Relative to the folder, with `/` between."""
    size: int
    changed: int
    """Nanoseconds."""


class Listing:
    """What is in a folder and below it: pictures, what is said of them beside them, and other files.

    Hidden files and finished runs do not count, links are followed. What is held in memory does not grow
    with the number of files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs = str(runs_folder().resolve())  # may lie in the folder, and would be new samples each time
        self._table = open_table(LAYOUT)
        self._table.execute("BEGIN")
        self._table.execute("INSERT INTO folders VALUES (?)", (b"",))
        for number in itertools.count(1):
            row = self._table.execute("SELECT name FROM folders WHERE rowid = ?", (number,)).fetchone()
            if row is None:
                break
            self._list(_text(row[0]))
        self._table.execute(
            "INSERT INTO files SELECT kind, name, stem, size, changed FROM found ORDER BY kind, name"
        )
        self._table.execute("DROP TABLE found")
        self._table.execute("COMMIT")
        counted = self._table.execute("SELECT kind, COUNT(*) FROM files GROUP BY kind").fetchall()
        self._counts = {kind: dict(counted).get(kind, 0) for kind in range(4)}

    def __del__(self) -> None:
        if hasattr(self, "_table"):
            self._table.close()

    def __len__(self) -> int:
        return sum(self._counts.values())

    @property
    def pictures(self) -> int:
        """How many pictures there are."""
        return self._counts[PICTURE]

    def some_pictures(self, start: int = 0, stop: int | None = None) -> Iterator[File]:
        """Pictures by their numbers in the order of their names."""
        return self._between(start, self.pictures if stop is None else min(stop, self.pictures))

    def beside(self) -> Iterator[File]:
        """Texts and tables that may say something of pictures."""
        start = self.pictures
        return self._between(start, start + self._counts[CAPTION] + self._counts[TABLE], by_name=True)

    def tables(self) -> list[Path]:
        """Tables that say something of pictures."""
        start = self.pictures + self._counts[CAPTION]
        return [self.root / file.name for file in self._between(start, start + self._counts[TABLE])]

    def paths(self) -> list[Path]:
        """All files, of which there may be few only."""
        names = self._table.execute("SELECT name FROM files ORDER BY name")
        return [self.root / _text(name) for (name,) in names]

    def left_out(self) -> dict[str, int]:
        """How many files of which ending say nothing of any picture, the most frequent first."""
        pictured = f"SELECT substr(name, 1, stem) FROM files WHERE kind = {PICTURE}"
        lonely = f"kind = {CAPTION} AND substr(name, 1, stem) NOT IN ({pictured})"
        names = self._table.execute(f"SELECT name FROM files WHERE kind = {OTHER} OR ({lonely})")
        return endings(_text(name) for (name,) in names)

    def state(self, start: int, stop: int) -> str:
        """A digest of what changes with some pictures, without reading them."""
        files = self.some_pictures(start, stop)
        return digest([(PurePosixPath(file.name).name, file.size, file.changed) for file in files])

    def _between(self, start: int, stop: int, *, by_name: bool = False) -> Iterator[File]:
        query = "SELECT name, size, changed FROM files WHERE rowid BETWEEN ? AND ?"
        if by_name:
            rows = self._table.execute(f"{query} ORDER BY name", (start + 1, stop))
            yield from (File(_text(name), size, changed) for name, size, changed in rows)
            return
        for first in range(start, stop, ROWS):  # nobody knows who reads meanwhile
            rows = self._table.execute(query, (first + 1, min(first + ROWS, stop)))
            yield from [File(_text(name), size, changed) for name, size, changed in rows.fetchall()]

    def _list(self, folder: str) -> None:
        """Take in what is in one folder, from the beginning if the disk stutters."""
        mark = self._table.execute(
            "SELECT (SELECT MAX(rowid) FROM found), MAX(rowid) FROM folders"
        ).fetchone()
        path = self.root / folder
        if self._is_run(str(path)):
            return

        def attempt() -> None:
            self._table.execute("DELETE FROM found WHERE rowid > ?", (mark[0] or 0,))
            self._table.execute("DELETE FROM folders WHERE rowid > ?", (mark[1],))
            with os.scandir(path) as entries:
                while some := list(itertools.islice(entries, ROWS)):
                    self._take(folder, some)

        try:
            patiently(attempt, path)
        except OSError as error:
            raise DataError(
                f"{path} cannot be looked into ({error.strerror or error}); make it readable, or move it away"
            ) from None

    def _take(self, folder: str, entries: list["os.DirEntry[str]"]) -> None:
        shown = [entry for entry in entries if not entry.name.startswith((".", "__MACOSX"))]
        folders = [entry for entry in shown if entry.is_dir()]
        inside = [_raw(folder, entry) for entry in folders if not entry.is_symlink() or self._new(entry)]
        self._table.executemany("INSERT INTO folders VALUES (?)", ((name,) for name in inside))
        files = (entry for entry in shown if self._is_file(entry))
        self._table.executemany(
            "INSERT INTO found VALUES (?, ?, ?, ?, ?)", (_row(folder, entry) for entry in files)
        )

    def _new(self, link: "os.DirEntry[str]") -> bool:
        """Whether a link to a folder leads to another one than those that it lies in."""
        target = Path(os.path.realpath(link.path))
        within = itertools.takewhile(lambda path: path != self.root.parent, Path(link.path).parents)
        real = [Path(os.path.realpath(path)) for path in within]
        return not any(target == path or target in path.parents for path in real)

    def _is_file(self, entry: "os.DirEntry[str]") -> bool:
        """Whether there is a file, or a link to one that is lost, which is a sample that is missing."""
        if not entry.is_symlink():
            return entry.is_file()
        return (entry.is_file() or not Path(entry.path).exists()) and not self._is_run(entry.path)

    def _is_run(self, path: str) -> bool:
        real = os.path.realpath(path)
        return real == self._runs or real.startswith(self._runs + os.sep)


def endings(names: Iterable[str]) -> dict[str, int]:
    """How many files of which ending there are, the most frequent first."""
    counts: Counter[str] = Counter()
    for name in names:
        path = PurePosixPath(name)
        ending = path.suffix.lower() or path.name
        counts[ending if ending in counts or len(counts) < ENDINGS else "others"] += 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def kind_of(name: str) -> int:
    """What a file is for, by its name."""
    path = PurePosixPath(name)
    if path.suffix.lower() in PICTURES:
        return PICTURE
    if path.name in METADATA:
        return TABLE
    return CAPTION if path.suffix == ".txt" else OTHER


def _row(folder: str, entry: "os.DirEntry[str]") -> tuple[bytes, int, int, int, int]:
    try:
        state = entry.stat()
    except FileNotFoundError:
        state = entry.stat(follow_symlinks=False)
    name = _raw(folder, entry)
    suffix = PurePosixPath(entry.name).suffix
    stem = len(name) - len(suffix.encode("utf-8", "surrogatepass"))
    return name, kind_of(entry.name), stem, state.st_size, state.st_mtime_ns


def _raw(folder: str, entry: "os.DirEntry[str]") -> bytes:
    """A name as it is sorted: by code points, whatever its bytes are."""
    name = f"{folder}/{entry.name}" if folder else entry.name
    return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")

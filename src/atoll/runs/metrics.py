"""What a job measures while it works, as lines that others read along."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atoll.runs.files import read_lines, replacing

Listener = Callable[[int, Mapping[str, float]], None]
"""Is told a step and what was measured."""


class Metrics:
    """A job's `metrics.jsonl`: one object per line, opened once, readable while it grows."""

    def __init__(self, path: Path, done: int, also: Listener | None = None) -> None:
        """Open the file after `done` steps, dropping lines of later ones: they will be taken again.

        Every line is told to `also` as well, after it was written.
        """
        self._also = also
        if path.is_file():
            kept = [line for line in read_lines(path) if line["step"] <= done]
            with replacing(path) as beside:
                beside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, step: int, **values: float) -> None:
        """Append one line; a value that is not finite is a bug of the caller."""
        assert all(math.isfinite(value) for value in values.values()), values
        self._file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")
        if self._also is not None:
            self._also(step, values)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Tail:
    """The newest line of a file of JSON lines that grows: what has been seen is not read again."""

    PIECE = 1 << 16
    """Bytes at most of one look: of a long file only the end is of interest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        """In all looks."""
        self._forget()

    def _forget(self) -> None:
        self._file, self._offset, self._half, self._last = (0, 0), 0, b"", dict[str, Any]()

    def latest(self) -> dict[str, Any]:
        """The last whole line, or nothing yet; a file that was replaced or cut is read anew."""
        try:
            about = self.path.stat()
        except OSError:
            self._forget()
            return {}
        if (about.st_dev, about.st_ino) != self._file or about.st_size < self._offset:
            self._forget()
            self._file = (about.st_dev, about.st_ino)
        if about.st_size > self._offset:
            self._read(about.st_size)
        return self._last

    def _read(self, size: int) -> None:
        """Read on to `size`; where that is far, from a line's end near it."""
        skipped = size - self._offset > self.PIECE
        start = size - self.PIECE if skipped else self._offset
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            data = file.read(size - start)
        self.bytes_read += len(data)
        self._offset = start + len(data)
        lines = ((b"" if skipped else self._half) + data).split(b"\n")
        self._half = lines.pop()  # what comes after the last line's end
        for text in reversed(lines[1:] if skipped else lines):
            with contextlib.suppress(ValueError):
                self._last = dict(json.loads(text))
                return


class Follower:
    """Every line of a file of JSON lines that grows, each once: what has been seen is not read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        """In all looks."""
        self._forget()

    def _forget(self) -> None:
        self._file, self._offset, self._half = (0, 0), 0, b""

    def more(self) -> tuple[bool, list[dict[str, Any]]]:
        """The lines since the last look, and whether they are all there are: the file is new, or was cut."""
        try:
            about = self.path.stat()
        except OSError:
            anew = self._offset > 0
            self._forget()
            return anew, []
        file = (about.st_dev, about.st_ino)
        anew = file != self._file or about.st_size < self._offset
        if anew:
            self._forget()
            self._file = file
        return anew, self._read(about.st_size) if about.st_size > self._offset else []

    def _read(self, size: int) -> list[dict[str, Any]]:
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._offset)
            data = file.read(size - self._offset)
        self.bytes_read += len(data)
        self._offset += len(data)
        *whole, self._half = (self._half + data).split(b"\n")
        lines = []
        for text in whole:
            with contextlib.suppress(ValueError, TypeError):
                lines.append(dict(json.loads(text)))
        return lines

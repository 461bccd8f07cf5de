"""Bytes of a source, however slow the disk is: what passes is tried again, what is broken is said."""

import bz2
import errno
import gzip
import lzma
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from atoll.errors import DataError
from atoll.runs import digest

Result = TypeVar("Result")

TRANSIENT = frozenset(
    number
    for name in (
        *("EIO", "ESTALE", "ETIMEDOUT", "EAGAIN", "EBUSY", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN"),
        *("ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "ENETDOWN", "ENETUNREACH", "ENETRESET"),
        *("EHOSTDOWN", "EHOSTUNREACH", "ENFILE", "EMFILE", "ENOMEM"),
    )
    if (number := getattr(errno, name, None)) is not None
)
"""Errors of a disk or a network that say nothing about the bytes."""
WAITS = (0.2, 1.0, 3.0)
"""Seconds before each further try."""
BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""What unpacking damaged bytes raises."""


def is_transient(error: BaseException) -> bool:
    """Whether an error may pass, so that it is no sign of damage."""
    return isinstance(error, OSError) and error.errno in TRANSIENT


def patiently(action: Callable[[], Result], what: Path | str) -> Result:
    """Do something with a disk, several times if need be; what does not pass stops the command."""
    for wait in (*WAITS, None):
        try:
            return action()
        except OSError as error:
            if not is_transient(error):
                raise
            if wait is None:
                raise _given_up(error, what) from None
        time.sleep(wait)
    raise AssertionError("unreachable")


def resumed(read: Callable[[int], Iterator[Result]], start: int, what: Path | str) -> Iterator[Result]:
    """Items from a position on, read again from where they broke off if that may help."""
    position, failures = start, 0
    while True:
        try:
            for item in read(position):
                yield item
                position, failures = position + 1, 0
            return
        except OSError as error:
            if not is_transient(error):
                raise
            if failures == len(WAITS):
                raise _given_up(error, what) from None
        time.sleep(WAITS[failures])
        failures += 1


def _given_up(error: OSError, what: Path | str) -> DataError:
    return DataError(
        f"{what} cannot be read now ({error.strerror or error}, {1 + len(WAITS)} tries); "
        "this is the disk's or the network's doing: run the same command again"
    )


def read_bytes(path: Path) -> bytes:
    """All bytes of a file."""
    return patiently(path.read_bytes, path)


def file_state(files: Sequence[Path]) -> str:
    """A digest of what changes with files, without reading them: names, sizes, times."""
    stats = [(file.name, state_of(file)) for file in files]
    return digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def state_of(file: Path) -> os.stat_result:
    """Of a file, or of the link where that leads nowhere."""
    return patiently(file.stat if file.exists() else file.lstat, file)


class Stream:
    """The bytes of a file, unpacked where they are packed; the file is opened anew where that helps."""

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0
        self._file: Any = None
        self._open_file = opener(path)
        self.packed = self._open_file is not open
        """Whether skipping costs as much as reading."""
        self.length = None if self.packed else patiently(path.stat, path).st_size
        """Bytes in all, where that is known."""

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def read(self, count: int) -> bytes:
        """The next bytes; fewer at the end."""

        def attempt() -> bytes:
            try:
                file = self._opened()
                raw = bytes(file.read(count))
            except OSError:
                self._close()  # a stale handle never recovers
                raise
            return raw

        raw = patiently(attempt, self.path)
        self.position += len(raw)
        return raw

    def go_to(self, position: int) -> None:
        """Go on reading elsewhere."""
        self.position = position
        if self._file is not None:
            patiently(self._seek, self.path)

    def _opened(self) -> Any:
        if self._file is None:
            self._file = self._open_file(self.path, "rb")
            self._file.seek(self.position)
        return self._file

    def _seek(self) -> None:
        try:
            self._opened().seek(self.position)
        except OSError:
            self._close()
            raise

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def opener(path: Path) -> Callable[..., Any]:
    """What opens a file, by its first bytes: gzip, bzip2, xz, or as it is."""
    head = patiently(lambda: _head(path), path)
    for magic, unpack in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if head.startswith(magic):
            return unpack
    return open


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(6)

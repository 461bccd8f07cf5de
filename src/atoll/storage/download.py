"""A file brought here piece by piece, going on where an earlier try stopped; checked, then put in place."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from atoll.errors import CorruptError
from atoll.runs import file_digest
from atoll.runs.locks import locked
from atoll.storage.store import Event

CHUNK = 8 * 2**20
"""Bytes that one request asks for, and the size up to which one request sends a whole file."""
HASH_TRIES = 5


@dataclass(frozen=True)
class Download:
    """One file of a store on its way here."""

    where: str
    """Its address, for a person."""
    size: Callable[[], int]
    piece: Callable[[int, int], bytes]
    """Its bytes from here to there."""
    event: Event

    def to(self, path: Path, sha256: str) -> None:
        """Bring it to a path; another job of this machine that wants the same waits for the first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with _partial(path, sha256[:12]) as (file, partial):
            if not is_file_with(path, sha256):
                self._fill(file, partial, sha256)
                os.fsync(file.fileno())
                partial.replace(path)

    def _fill(self, file: IO[bytes], partial: Path, sha256: str) -> None:
        for _ in range(HASH_TRIES):
            size = self.size()
            if file.tell() > size:
                file.truncate(0)
            while (position := os.fstat(file.fileno()).st_size) < size:
                file.write(self.piece(position, min(position + CHUNK, size)))
                file.flush()
            if is_file_with(partial, sha256):
                return
            self.event("store_fault", operation="get", name=self.where, problem="sha256 differs")
            file.truncate(0)
        raise CorruptError(
            f"{self.where} is damaged (sha256 differs); make its stage again with --start-over"
        )


@contextlib.contextmanager
def _partial(path: Path, digits: str) -> Iterator[tuple[IO[bytes], Path]]:
    """A file to append to, ours alone; it outlives a failure, to go on from.

    Where there are no locks it is one that nobody else opens, and nothing outlives.
    """
    partial = path.with_name(f".{path.name}.{digits}.partial")
    with partial.open("ab") as file:
        if locked(file, partial):
            yield file, partial
            partial.unlink(missing_ok=True)
            return
    partial.unlink(missing_ok=True)
    own = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        with own.open("wb") as file:
            yield file, own
    finally:
        own.unlink(missing_ok=True)


def is_file_with(path: Path, sha256: str) -> bool:
    """Whether a file is here, with a hash that begins like this."""
    return path.is_file() and file_digest(path).startswith(sha256)

"""Rows of an array on disk, written as they come and in any order: a .npy file that is never held whole."""

import contextlib
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

VALUE = np.dtype("<f4")


class Numbers:
    """Which of the numbers 0, 1, … are done: a whole beginning, and some after it."""

    def __init__(self) -> None:
        self._whole = 0
        self._after: set[int] = set()

    def add(self, numbers: Iterable[int]) -> None:
        """Note that these are done."""
        self._after.update(numbers)
        while self._whole in self._after:
            self._after.remove(self._whole)
            self._whole += 1

    def __len__(self) -> int:
        return self._whole + len(self._after)

    def __iter__(self) -> Iterator[int]:
        yield from range(self._whole)
        yield from sorted(self._after)


class ArrayFile:
    """A file of so many rows of one shape; until it is finished it lies beside its place."""

    def __init__(self, path: Path, num: int, shape: Sequence[int]) -> None:
        self.path, self.num, self.shape = path, num, tuple(shape)
        self.beside = path.with_name(f".{path.name}.part")
        self.done = Numbers()
        self._row = math.prod(self.shape) * VALUE.itemsize
        self._file: BinaryIO | None = None
        self._start = 0

    def claim(self) -> None:
        """Show others, before there are rows, that the place is taken."""
        self.beside.touch()

    def put(self, numbers: Sequence[int], rows: NDArray[np.float32]) -> None:
        """Write some rows to their places."""
        if self._file is None:
            self._file = self.beside.open("w+b")
            self._start = _write_header(self._file, (self.num, *self.shape))
        for number, row in zip(numbers, rows, strict=True):
            self._file.seek(self._start + number * self._row)
            self._file.write(np.ascontiguousarray(row, VALUE).tobytes())
        self.done.add(numbers)

    def finish(self) -> None:
        """Put the file in its place; rows that never came are left out, and the others close up."""
        assert self._file is not None, "there is at least one row"
        if len(self.done) < self.num:
            self._close_up()
        self._file.close()
        self.beside.replace(self.path)

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self._file is not None:
            self._file.close()
        with contextlib.suppress(OSError):
            self.beside.unlink(missing_ok=True)

    def _close_up(self) -> None:
        """Rows only ever move towards the beginning, so that one file is enough; the header is as long."""
        assert self._file is not None
        for place, number in enumerate(self.done):
            if place != number:
                self._file.seek(self._start + number * self._row)
                row = self._file.read(self._row)
                self._file.seek(self._start + place * self._row)
                self._file.write(row)
        self._file.seek(0)
        start = _write_header(self._file, (len(self.done), *self.shape))
        assert start == self._start, "numpy's header has room for any number of rows"
        self._file.truncate(self._start + len(self.done) * self._row)


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> int:
    """Write numpy's header; where the rows begin."""
    about = {"descr": VALUE.str, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, about)
    return file.tell()


def free_bytes(folder: Path) -> int:
    """What the disk of a folder, which need not be there yet, has left."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free

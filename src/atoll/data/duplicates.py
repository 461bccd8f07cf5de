"""Samples that are there more than once, found in memory that does not grow with the data."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from atoll.data.store import fixed_bytes

AT_ONCE = 4_000_000
"""Ids that are compared at once; more are compared range by range."""


def repeated_rows(paths: Sequence[Path], at_once: int = AT_ONCE) -> list[NDArray[np.int64]]:
    """For every file the rows whose id has been seen before, in it or in a file before it."""
    rows = [pq.read_metadata(path).num_rows for path in paths]
    found: list[list[NDArray[np.int64]]] = [[] for _ in paths]
    passes = -(-sum(rows) // at_once)
    for number in range(passes):
        for file, repeated in _repeated_in_range(paths, number, passes):
            found[file].append(repeated)
    return [np.sort(np.concatenate([np.zeros(0, np.int64), *parts])) for parts in found]


def _repeated_in_range(
    paths: Sequence[Path], number: int, passes: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Compare the ids whose first bytes fall into one of `passes` equal ranges."""
    ids, places = [], []
    for file, path in enumerate(paths):
        columns = pq.read_table(path, columns=["id"], use_threads=False)["id"].chunks
        raw = np.concatenate([np.zeros((0, 32), np.uint8), *(fixed_bytes(chunk) for chunk in columns)])
        first = np.ascontiguousarray(raw[:, :4]).view(">u4")[:, 0].astype(np.int64)
        mine = np.flatnonzero(first * passes >> 32 == number)
        ids.append(raw[mine])
        places.append(np.stack([np.full(len(mine), file), mine], axis=1))
    every, place = np.concatenate(ids), np.concatenate(places)
    words = np.ascontiguousarray(every).view(">u8").reshape(len(every), 4)
    order = np.lexsort(words.T[::-1])  # stable: of equal ids the first in the data comes first
    equal = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    repeated = place[order[1:][equal]]
    for file in range(len(paths)):
        yield file, repeated[repeated[:, 0] == file, 1]

"""Samples that are there more than once, found in memory that does not grow with the data."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from atoll.data.columns import fixed_bytes

AT_ONCE = 1_000_000
"""Ids that are compared at once; more are first spread over files by their first bytes."""
RECORD = np.dtype([("id", ">u8", 4), ("file", "<u4"), ("row", "<u4")])


def repeated_rows(paths: Sequence[Path], at_once: int = AT_ONCE) -> list[NDArray[np.int64]]:
    """For every file the rows whose id has been seen before, in it or in a file before it."""
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    repeated: list[list[NDArray[np.int64]]] = [[] for _ in paths]
    with tempfile.TemporaryDirectory(".partial", ".ids-", paths[0].parent if paths else None) as folder:
        for bucket in _spread(paths, -(-rows // at_once), Path(folder)):
            for file, repeats in _repeated_in(np.fromfile(bucket, RECORD)):
                repeated[file].append(repeats)
    return [np.sort(np.concatenate([np.zeros(0, np.int64), *parts])) for parts in repeated]


def _spread(paths: Sequence[Path], count: int, folder: Path) -> list[Path]:
    """Write ids with their places into `count` files by ranges of equal size; equal ids meet in one."""
    buckets = [folder / f"{number:05d}" for number in range(count)]
    for file, path in enumerate(paths):
        chunks = pq.read_table(path, columns=["id"], use_threads=False)["id"].chunks
        raw = np.concatenate([np.zeros((0, 32), np.uint8), *(fixed_bytes(chunk) for chunk in chunks)])
        records = np.zeros(len(raw), RECORD)
        records["id"] = np.ascontiguousarray(raw).view(">u8").reshape(len(raw), 4)
        records["file"], records["row"] = file, np.arange(len(raw))
        first = np.ascontiguousarray(raw[:, :4]).view(">u4")[:, 0].astype(np.int64)
        for number in np.unique(first * count >> 32):
            with buckets[number].open("ab") as out:
                records[first * count >> 32 == number].tofile(out)
    return [bucket for bucket in buckets if bucket.is_file()]


def _repeated_in(records: NDArray[np.void]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """By file, the rows whose id another row before them has."""
    words = records["id"]
    order = np.lexsort(words.T[::-1])  # stable: of equal ids the first in the data comes first
    equal = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    repeated = records[order[1:][equal]]
    for file in np.unique(repeated["file"]):
        yield int(file), repeated["row"][repeated["file"] == file].astype(np.int64)

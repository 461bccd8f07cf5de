"""Rows that were seen before are found in any amount of memory."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atoll.data.duplicates import repeated_rows


@pytest.mark.parametrize("at_once", [1_000, 40, 7])
def test_all_but_the_first_of_equal_ids(tmp_path: Path, at_once: int) -> None:
    random = np.random.default_rng(0)
    known = random.integers(0, 256, (30, 32), dtype=np.uint8)
    known[:10, :31] = 7  # ids that differ in their last byte only
    seen: set[bytes] = set()
    paths, expected = [], []
    for number, rows in enumerate((40, 0, 33)):
        ids = [bytes(known[index]) for index in random.integers(0, 30, rows)]
        expected.append([row for row, key in enumerate(ids) if key in seen or key in ids[:row]])
        seen.update(ids)
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(pa.table({"id": pa.array(ids, pa.binary(32))}), paths[-1])
    assert [rows.tolist() for rows in repeated_rows(paths, at_once)] == expected
    assert sum(map(len, expected)) == 73 - len(seen)


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    peaks = []
    random = np.random.default_rng(0)
    for files in (4, 16):
        paths = [tmp_path / f"{files}-{number}.parquet" for number in range(files)]
        for path in paths:
            ids = [random.bytes(32) for _ in range(2_000)]
            pq.write_table(pa.table({"id": pa.array(ids, pa.binary(32))}), path)
        tracemalloc.start()
        assert sum(map(len, repeated_rows(paths, 4_000))) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]

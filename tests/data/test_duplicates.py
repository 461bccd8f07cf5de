"""Rows that were seen before are found in any amount of memory."""

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

"""An assignment from elsewhere, by names or ids of samples, looked up on disk however long it is."""

import csv
import itertools
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from atoll.data.kmeans import Assigned
from atoll.data.rules import RULE, View
from atoll.data.scratch_table import open_table
from atoll.errors import DataError
from atoll.runs import write_json

ROWS = 10_000
"""Rows that are written or looked up at once."""


class FileRule:
    """The cluster of each sample as a .csv, .jsonl or .parquet file says."""

    def __init__(self, path: Path, clusters: int, folder: Path) -> None:
        """Read the file once, into a table beside the partition that goes with this object."""
        self._path, self._clusters = path, clusters
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f".clusters-{secrets.token_hex(4)}.partial"
        self._table = open_table(
            "CREATE TABLE clusters (key TEXT PRIMARY KEY, cluster INTEGER) WITHOUT ROWID", place
        )
        self._by_id = self._fill()

    def __del__(self) -> None:
        self._table.close()

    def _fill(self) -> bool:
        """Take in the file; whether samples are told by id."""
        try:
            rows = read_rows(self._path)
            first = next(rows, {})
            key = "id" if "id" in first else "name"
            self._insert(itertools.chain([first] if first else [], rows), key)
        except (OSError, pa.ArrowException, csv.Error, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"partition.file '{self._path}' cannot be read ({type(error).__name__}: {error}); give a "
                ".csv, .jsonl or .parquet with columns 'cluster' and 'name' or 'id'"
            ) from None
        return key == "id"

    def _insert(self, rows: Iterable[Mapping[str, Any]], key: str) -> None:
        pairs = self._checked(rows, key)
        self._table.execute("BEGIN")
        while some := list(itertools.islice(pairs, ROWS)):
            self._table.executemany("INSERT OR REPLACE INTO clusters VALUES (?, ?)", some)
        self._table.execute("COMMIT")

    def _checked(self, rows: Iterable[Mapping[str, Any]], key: str) -> Iterator[tuple[str, int]]:
        for row in rows:
            name, cluster = _text(row[key]), int(row["cluster"])
            if not 0 <= cluster < self._clusters:
                raise DataError(
                    f"{self._path} puts {name} in cluster {cluster}; give clusters from 0 to "
                    f"{self._clusters - 1}"
                )
            yield name, cluster

    def assign(self, view: View) -> Assigned:
        """The cluster of every row."""
        keys = [bytes(raw).hex() for raw in view.ids] if self._by_id else view.names
        cluster = np.array([self._cluster(key) for key in keys], np.int64)
        return Assigned(cluster, np.zeros(len(cluster), np.float32))

    def _cluster(self, key: str) -> int:
        row = self._table.execute("SELECT cluster FROM clusters WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise DataError(f"{self._path} does not say which cluster {key} belongs to; add it")
        return int(row[0])

    def save(self, folder: Path) -> list[str]:
        """Write the rule down, and name the files."""
        write_json(folder / RULE, {"method": "file"})
        return [RULE]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .csv, .jsonl or .parquet file, one by one."""
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as table:
            names = [name for name in ("id", "name", "cluster") if name in table.schema_arrow.names]
            for batch in table.iter_batches(ROWS, columns=names, use_threads=False):
                yield from batch.to_pylist()
        return
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
        else:
            yield from (json.loads(line) for line in file if line.strip())


def _text(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)

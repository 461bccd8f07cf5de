"""A table without a name: what is written is there, and nothing stays."""

import threading
from pathlib import Path

import pytest

from atoll.data.scratch_table import open_table


@pytest.mark.parametrize("named", [True, False])
def test_it_leaves_nothing_behind(tmp_path: Path, named: bool) -> None:
    table = open_table("CREATE TABLE numbers (one INTEGER)", tmp_path / "place" if named else None)
    table.executemany("INSERT INTO numbers VALUES (?)", ((number,) for number in range(100_000)))
    assert table.execute("SELECT SUM(one) FROM numbers").fetchone() == (99_999 * 50_000,)
    assert not list(tmp_path.iterdir())
    table.close()


def test_another_thread_may_read() -> None:
    table = open_table("CREATE TABLE numbers (one INTEGER); INSERT INTO numbers VALUES (7)")
    rows = []
    thread = threading.Thread(target=lambda: rows.extend(table.execute("SELECT one FROM numbers").fetchall()))
    thread.start()
    thread.join()
    assert rows == [(7,)]

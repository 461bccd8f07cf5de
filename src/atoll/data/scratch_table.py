"""A table on disk that goes with the object that holds it, for lists too long for memory."""

import sqlite3
from pathlib import Path

CACHE_KIB = 16_000
"""Memory that a table may take; what fits in it never reaches the disk."""


def open_table(layout: str, place: Path | None = None) -> sqlite3.Connection:
    """A database without a name that lives as long as it is open: at `place`, else where temporaries are."""
    # Nobody else opens it, and some file systems have no locks.
    name = "" if place is None else f"file:{place}?vfs=unix-none"
    table = sqlite3.connect(name, uri=place is not None, isolation_level=None, check_same_thread=False)
    for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE"):
        table.execute(f"PRAGMA {setting}")
    table.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    table.executescript(layout)
    if place is not None:
        place.unlink()  # it is gone however this process ends
    return table

"""Faults that strangers and machines cause, counted as they happen, written down together by the keeper.

So a thousand of one kind are one line, and a database that was away is told of once it is back.
"""

import threading
from collections import Counter

from atoll.net.database import Away, Database
from atoll.net.tables import happened


class Faults:
    """How often what went wrong since the last time; kinds and codes are ours, so there are few of them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._guard = threading.Lock()

    def note(self, kind: str, code: str = "") -> None:
        """One more of a kind."""
        with self._guard:
            self._counts[kind, code] += 1

    def write(self, database: Database, now: float) -> int:
        """Make happenings of what was counted; how many. What cannot be written is kept for the next time."""
        with self._guard:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return 0
        try:
            with database.writing(durable=False) as session:
                for (kind, code), count in sorted(counts.items()):
                    facts = {"code": code} if code else {}
                    happened(session, now, kind, count=count, **facts)
        except Away:
            with self._guard:
                self._counts += counts
            raise
        return len(counts)

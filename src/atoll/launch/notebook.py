"""Progress below the cell of a notebook: one text that is written anew, with nothing to install for it."""

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console

from atoll.launch.driver import Screen
from atoll.launch.job import JobStatus
from atoll.launch.remaining import Remaining
from atoll.launch.table import Watch, table
from atoll.runs.graph import Progress

SECONDS = 0.5
"""Between two looks that are shown."""
WIDTH = 100


def is_here() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    current = None if shell is None else shell.get_ipython()
    return current is not None and hasattr(current, "kernel")


class Cell:
    """A text below the cell; what comes too soon after the last waits for the next, or for the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, clock()
        self._handle: Any = None
        self._waiting: str | None = None

    def show(self, text: str) -> None:
        """Show a text in place of the last one, unless that was a moment ago."""
        self._waiting = text
        if self._clock() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Show what is still waiting."""
        if self._waiting is None:
            return
        content, self._waiting = {"text/plain": self._waiting}, None
        self._next = self._clock() + SECONDS
        if self._handle is None:
            display = sys.modules["IPython"].display.display
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def screen() -> Screen:
    """The table of jobs, and counts of what is made here."""
    return Screen(_table, _count)


@contextlib.contextmanager
def _cell() -> Iterator[Cell]:
    cell = Cell()
    try:
        yield cell
    finally:
        cell.flush()


@contextlib.contextmanager
def _table() -> Iterator[Watch]:
    with _cell() as cell:
        remaining = Remaining()

        def watch(jobs: Sequence[JobStatus]) -> None:
            text = io.StringIO()
            Console(file=text, width=WIDTH).print(table(jobs, remaining.look(jobs)))
            cell.show(text.getvalue())

        yield watch


@contextlib.contextmanager
def _count() -> Iterator[Progress]:
    with _cell() as cell:
        yield lambda name, done, total: cell.show(f"{name}: {done:,}" + (f" of {total:,}" if total else ""))

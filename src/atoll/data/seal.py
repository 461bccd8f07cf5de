"""A job sees its own samples only: while a seal is on, other clusters cannot be opened."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atoll.errors import IsolationError
from atoll.runs import Stage

_allowed: frozenset[str] | None = None
_watching = False


@contextlib.contextmanager
def sealed(*stages: Stage) -> Iterator[None]:
    """Let no samples at rest but those of these stages be opened in this process for a while."""
    global _allowed, _watching
    if not _watching:
        sys.addaudithook(_watch)  # for good: Python cannot remove one, and it is idle without a seal
        _watching = True
    before, _allowed = _allowed, frozenset(os.path.realpath(stage.path) for stage in stages)
    try:
        yield
    finally:
        _allowed = before


def check(folder: str | Path) -> None:
    """Refuse a folder that the seal does not name."""
    if _allowed is not None and os.path.realpath(folder) not in _allowed:
        raise IsolationError(f"{folder} belongs to another job; a job may read only its own samples")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse any file of a cluster beside the allowed ones, whoever opens it."""
    if _allowed is None or event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    folder, _ = os.path.split(os.path.realpath(os.fsdecode(arguments[0])))
    above, name = os.path.split(folder)
    if name.startswith("cluster-") and any(os.path.dirname(own) == above for own in _allowed):
        check(folder)

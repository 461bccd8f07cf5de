"""What commands print: one JSON object, or words and progress for a person."""

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

LINE_SECONDS = 30.0
"""Off a terminal, so often somebody who reads a log is told how far it is."""


def tell(as_json: bool, facts: dict[str, Any], sentence: str) -> None:
    """One JSON object, or a sentence."""
    print(json.dumps(facts) if as_json else sentence)


def tell_stage(as_json: bool, stage: Any, lines: Sequence[str] = ()) -> None:
    """Where a finished stage is, and what it holds."""
    sentence = "\n".join([*lines, f"Done: {stage.path}"])
    tell(as_json, {"folder": str(stage.path), **stage.contents.facts()}, sentence)


def announced(as_json: bool, address: object, doing: str) -> Callable[[str], None]:
    """Tells where a server can be reached, as soon as it can be, to a person or to whoever reads along."""
    from atoll.storage.store import address_of

    run = address_of(str(address)) or str(address)  # as a path an address has lost a slash

    def ready(url: str) -> None:
        tell(as_json, {"address": url, "run": run}, f"{doing} {run} at {url} (Ctrl-C stops)")
        sys.stdout.flush()

    return ready


Report = Callable[[str, int, int], None]
"""Takes what is counted, how many are done, and of how many; 0 where nobody knows."""


@contextlib.contextmanager
def bar(quiet: bool) -> Iterator[Report | None]:
    """Progress with rate and time left: a bar on a terminal, a line now and then elsewhere."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bars() as report:
            yield report
    else:
        with speaking(Lines()) as lines:
            yield lines.report


@contextlib.contextmanager
def _bars() -> Iterator[Report]:
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Rate(rich.ProgressColumn):
        def render(self, task: rich.Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (
        rich.TextColumn("{task.description:16}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        Rate(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, rich.TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in known:
                known[name] = bars.add_task(name, total=total or None)
            bars.update(known[name], completed=done, total=total or None)

        yield report


@dataclass
class _Count:
    """How far one thing is, and since when it has been counted."""

    name: str
    began: float
    first: int
    done: int = 0
    total: int = 0

    def words(self, now: float) -> str:
        """Done, of how many, rate and time left."""
        from atoll.launch.remaining import clock_time

        rate = (self.done - self.first) / max(now - self.began, 1e-9)
        words = f"{self.name}: {self.done:,}" + (f" of {self.total:,}" if self.total else "")
        if rate <= 0:
            return f"{words}, {clock_time(now - self.began)} so far"
        words += f", {rate:,.3g}/s"
        return f"{words}, {clock_time((self.total - self.done) / rate)} left" if self.total else words


class Lines:
    """Progress as lines of a log; whoever counts reports, and somebody else asks for a line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current: _Count | None = None
        self._lock = threading.Lock()

    def report(self, name: str, done: int, total: int) -> None:
        """Take in how far something is; what is reported last is what is told."""
        with self._lock:
            if self._current is None or self._current.name != name or done < self._current.done:
                self._current = _Count(name, self._clock(), done)
            self._current.done, self._current.total = done, total

    def line(self) -> str | None:
        """How far it is now; None before anything was counted."""
        with self._lock:
            return None if self._current is None else self._current.words(self._clock())


@contextlib.contextmanager
def speaking(lines: Lines, every: float = LINE_SECONDS) -> Iterator[Lines]:
    """Log a line now and then, also while whoever counts is busy with one large thing."""
    ended = threading.Event()

    def speak() -> None:
        while not ended.wait(every):
            line = lines.line()
            if line is not None:
                logger.info("%s", line)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join()


def named(report: Report | None, name: str) -> Callable[[int, int], None] | None:
    """The count of one thing alone."""
    return None if report is None else lambda done, total: report(name, done, total)

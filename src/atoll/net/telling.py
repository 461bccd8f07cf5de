"""What a worker says while it works: one living line on a terminal, plain lines elsewhere."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console
from rich.status import Status

logger = logging.getLogger(__name__)


class Tell(Protocol):
    """Who is told what a worker does."""

    def news(self, sentence: str) -> None:
        """Something that stays: work that began, was received, checked, accepted, credited; a fault."""

    def now(self, sentence: str) -> None:
        """What is being done at this moment; the next replaces it."""


AGAIN = 300.0
"""Seconds after which plain lines say once more what is being done, though it is the same."""


class Lines:
    """Plain lines; what is being done is said when it is something else than before, and now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._kind, self._clock, self._said = "", clock, 0.0

    def news(self, sentence: str) -> None:
        """One line."""
        logger.info("%s", sentence)

    def now(self, sentence: str) -> None:
        """One line where the first words are new: numbers in it change all the time."""
        kind = sentence.partition(":")[0]
        if kind != self._kind or self._clock() >= self._said + AGAIN:
            self._kind, self._said = kind, self._clock()
            logger.info("%s", sentence)


class Screen:
    """A terminal: news scroll by above a line that says what is being done."""

    def __init__(self, status: Status, console: Console) -> None:
        self._status, self._console = status, console

    def news(self, sentence: str) -> None:
        """A line above."""
        self._console.print(sentence, markup=False, highlight=False)

    def now(self, sentence: str) -> None:
        """The line below."""
        self._status.update(sentence.replace("[", "("))


def counted(number: float, noun: str) -> str:
    """`1 credit`, `2.5 credits`."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


@contextlib.contextmanager
def telling() -> Iterator[Tell]:
    """Somebody to tell, as far as anybody looks."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    console = Console(stderr=True)
    with console.status("starting") as status:
        yield Screen(status, console)

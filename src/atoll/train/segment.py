"""A segment of a training: it ends after a chosen step, and every state that others share has a hash."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import Interrupted
from atoll.runs import Stage

Saved = Callable[[int, str], None]
"""Is told a step and the sha256 of the state that was saved after it."""


@dataclass(frozen=True)
class Segment:
    """Which steps are asked for; whoever asks is told the hash of every state that it shares with others.

    States are saved at multiples of `every`, counted from the first step of the training and not of the
    segment, so that their hashes are the same however a training is cut.
    """

    folder: Path
    """Of the stage that is trained; what is trained on the way to it is not cut."""
    last: int
    """The step after which the segment ends."""
    every: int
    saved: Saved

    def due(self, step: int) -> bool:
        """Whether the state after this step is one of those that all cuts share."""
        return step % self.every == 0 or step == self.last

    def check(self, name: str, step: int, steps: int) -> None:
        """Nothing is left to do of a segment whose last state is there, although the training goes on."""
        if self.last <= step < steps:
            raise Interrupted(f"{name} stopped at step {step} of {steps}")

    def note(self, step: int, sha256: str) -> None:
        """A state was saved."""
        if self.due(step):
            self.saved(step, sha256)


_asked: Segment | None = None


@contextlib.contextmanager
def only(segment: Segment) -> Iterator[None]:
    """For a while a training of this stage takes the steps of the segment alone."""
    global _asked
    before, _asked = _asked, segment
    try:
        yield
    finally:
        _asked = before


def of(stage: Stage) -> Segment | None:
    """The segment that is asked of this stage, if not all of it is."""
    return _asked if _asked is not None and _asked.folder == stage.path else None

"""A segment of a training: it ends after a chosen step, and every state that others share has a hash."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from atoll.errors import Interrupted
from atoll.runs import Stage

Saved = Callable[[int, str], None]
"""Is told a step and the sha256 of the state that was saved after it."""


def _to_nobody(step: int, sha256: str) -> None:
    pass


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
    traced: Saved = _to_nobody
    """Is told the last step of an interval and the hash of the losses on the way to it."""
    _losses: list[Tensor] = field(default_factory=list)

    def due(self, step: int) -> bool:
        """Whether the state after this step is one of those that all cuts share."""
        return step % self.every == 0 or step == self.last

    def check(self, name: str, step: int, steps: int) -> None:
        """Nothing is left to do of a segment whose last state is there, although the training goes on."""
        if self.last <= step < steps:
            raise Interrupted(f"{name} stopped at step {step} of {steps}")

    def seen(self, step: int, losses: Tensor) -> None:
        """A step was taken; an interval that did not begin at a state that all share has no trace."""
        self._losses.append(losses)
        if self.due(step):
            if (step - len(self._losses)) % self.every == 0:
                self.traced(step, trace(self._losses))
            self._losses.clear()

    def note(self, step: int, sha256: str) -> None:
        """A state was saved."""
        if self.due(step):
            self.saved(step, sha256)


def trace(losses: Sequence[Tensor]) -> str:
    """A hash of the losses of some steps, bit by bit: it is known to whoever took them."""
    rows = torch.cat([one.reshape(-1).float() for one in losses]).cpu()
    return hashlib.sha256(rows.numpy().tobytes()).hexdigest()


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

"""Trainings that are asked to stop on the way, as by a signal of the system."""

import os
import signal
from collections.abc import Callable

import pytest

from atoll.data.store import Batch
from atoll.train import loop
from atoll.train.window import Taken


def stop_when(patch: pytest.MonkeyPatch, due: Callable[[int, int], bool]) -> list[int]:
    """Ask this process to stop where `due` says so of the step and of how many were taken; the steps."""
    take, taken = loop.Steps.take, list[int]()

    def interrupted(steps: loop.Steps, batch: Batch) -> Taken:
        taken.append(steps.state.step)
        if due(steps.state.step, len(taken)):
            os.kill(os.getpid(), signal.SIGTERM)
        return take(steps, batch)

    patch.setattr(loop.Steps, "take", interrupted)
    return taken

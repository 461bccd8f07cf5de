"""Trainings that wait at a step: a test catches them on the way, however fast or slow the machine is.

So a training that is to be killed or stopped needs few steps, and no luck.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = "ATOLL_TESTS_HOLD"
"""Names where tests say which training waits, and at which step: a file named after the task, "expert-01"."""


@contextlib.contextmanager
def held(job: str, step: int) -> Iterator[None]:
    """Whoever trains this job in another process waits after so many steps, unless it is asked to stop."""
    file = Path(os.environ[FOLDER]) / job
    beside = file.with_name(f".{job}")
    beside.write_text(str(step))
    beside.rename(file)
    try:
        yield
    finally:
        file.unlink()


def install(loop: ModuleType) -> None:
    """Make the trainings of this process wait where they are told to."""
    room: Any = loop
    take, stop_requests = room.Steps.take, room.stop_requests
    stops: list[Callable[[], bool]] = []

    @contextlib.contextmanager
    def noted(*arguments, **options):
        with stop_requests(*arguments, **options) as asked:
            stops[:] = [asked]
            yield asked

    def patient(steps, batch):
        while steps.state.step >= _step(steps.task.name) and not any(asked() for asked in stops):
            time.sleep(0.02)
        return take(steps, batch)

    room.Steps.take, room.stop_requests = patient, noted


def _step(job: str) -> float:
    with contextlib.suppress(OSError):
        return int(Path(os.environ.get(FOLDER, ""), job).read_text())
    return float("inf")

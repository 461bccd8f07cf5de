"""How far a request is: samples that are done, and those under way by the share of their steps."""

import threading
from collections.abc import Callable

from atoll.errors import Interrupted

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all); those under way count by the share of their steps."""


class Tally:
    """Counts steps of batches that several threads follow, and has them stop when nobody waits any more."""

    def __init__(self, progress: Progress | None, steps: int, num: int) -> None:
        self._progress, self._steps, self._num = progress, steps, num
        self._taken = 0
        self._lock = threading.Lock()
        self._over = False

    def of(self, size: int) -> Callable[[int], None]:
        """What a batch of this size is to call after each of its steps."""

        def report(step: int) -> None:
            if self._over:
                raise Interrupted("nobody waits for these samples")
            if self._progress is None:
                return
            with self._lock:  # else what is told might go backwards
                self._taken += size
                self._progress(self._taken // self._steps, self._num)

        return report

    def end(self) -> None:
        """Let batches that are still under way end at their next step."""
        self._over = True

"""How often one key may ask: so many times a second on average, more for a moment."""

import threading

from atoll.errors import AtollError

RATE, BURST = 50.0, 500.0
"""Requests a second, and at once: a gigabit a second of uploaded pieces is thirty."""
MOST = 100_000
"""Keys that are remembered; whoever has not asked for long has all of its burst again anyway."""


class TooMany(AtollError):  # noqa: N818 - a state
    """A key asks more often than it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"your key asks too often; wait {seconds:.1f} seconds")
        self.seconds = seconds


class Pace:
    """A bucket of requests for every key, which fills up as time goes on."""

    def __init__(self, rate: float = RATE, burst: float = BURST) -> None:
        self.rate, self.burst = rate, burst
        self._left: dict[str, tuple[float, float]] = {}
        """How many requests are left, and when that was."""
        self._guard = threading.Lock()

    def check(self, key: str, now: float) -> None:
        """Count a request; TooMany where there is none left."""
        with self._guard:
            left, then = self._left.get(key, (self.burst, now))
            left = min(self.burst, left + (now - then) * self.rate)
            if left < 1:
                raise TooMany((1 - left) / self.rate)
            if len(self._left) >= MOST and key not in self._left:
                self._forget(now)
            self._left[key] = (left - 1, now)

    def _forget(self, now: float) -> None:
        """Drop keys that are full again; if there are none, the half that asked first."""
        full = self.burst / self.rate
        kept = {key: pair for key, pair in self._left.items() if now - pair[1] < full}
        self._left = kept if len(kept) < MOST else dict(list(kept.items())[MOST // 2 :])

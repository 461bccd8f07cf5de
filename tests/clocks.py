"""A clock that moves when a test says so, or when somebody sleeps by it."""

import threading


class ManualClock:
    """Nobody waits by it: who sleeps moves the time on, and then what `then` has for that moment happens."""

    def __init__(self):
        self.time = 0.0
        self.naps = []
        self.then = lambda: None

    def now(self):
        return self.time

    def date(self):
        return 1.8e9 + self.time

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.time += seconds
        self.then()

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        """Wait in earnest for the end alone: no heartbeat is due before a test gives one itself."""
        return ended.wait()


class TickingClock(ManualClock):
    """Heartbeats are due when the test calls `tick`, one each."""

    def __init__(self):
        super().__init__()
        self._ticks = threading.Semaphore(0)
        self._idle = threading.Event()

    def wait(self, ended, seconds):
        self._idle.set()
        while not self._ticks.acquire(timeout=0.01):
            if ended.is_set():
                return True
        self.time += seconds
        return ended.is_set()

    def tick(self):
        """One heartbeat, from its beginning to its end."""
        self._idle.wait()
        self._idle.clear()
        self._ticks.release()
        self._idle.wait()

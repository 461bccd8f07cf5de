"""Time that only ever grows, and waiting: an argument wherever it matters, so that no test depends on it."""

import threading
import time


class Clock:
    """This machine's own clock; no other machine's is ever compared with it."""

    def now(self) -> float:
        """Seconds since some moment in the past."""
        return time.monotonic()

    def date(self) -> float:
        """Seconds since 1970: for what people and other machines are told, never to measure by."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        time.sleep(seconds)

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        """Do nothing for a while, or until something has ended; whether it has."""
        return ended.wait(seconds)


CLOCK = Clock()

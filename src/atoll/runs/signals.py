"""Requests to stop, as a question that is asked between two steps."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)
_requests: list[tuple[threading.Event, Callable[[], None]]] = []
"""Whoever asks at present, the outermost first: a request is for all of them."""


@contextlib.contextmanager
def stop_requests(at_once: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Turn SIGTERM and SIGINT into a question; `at_once` is called by the signal itself, whatever goes on.

    In a thread that is not the first there are no signals to catch, and nobody asks to stop.
    """
    request = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield request.is_set
        return
    before = {number: signal.signal(number, _ask) for number in STOPPING}
    _requests.append((request, at_once))
    try:
        yield request.is_set
    finally:
        _requests.pop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _ask(number: int, frame: FrameType | None) -> None:
    for request, at_once in _requests:
        request.set()
        at_once()

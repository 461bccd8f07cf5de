"""The clock that everything uses unless a test brings its own."""

import threading

from atoll.storage.clock import CLOCK


def test_it_only_grows():
    before = CLOCK.now()
    CLOCK.sleep(0)
    assert CLOCK.now() >= before


def test_waiting_says_whether_it_has_ended():
    ended = threading.Event()
    assert not CLOCK.wait(ended, 0)
    ended.set()
    assert CLOCK.wait(ended, 1000), "at once"

"""Named points at which a test lets a process die, as if the power went: ATOLL_CRASH_AT=name or name:3."""

import os
import signal

VARIABLE = "ATOLL_CRASH_AT"
_passed: dict[str, int] = {}


def crash_point(name: str) -> None:
    """Die here without a word if the environment says so, the first time or the n-th."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _passed[name] = _passed.get(name, 0) + 1
    point, _, count = wanted.partition(":")
    if point == name and _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)

"""What a process asks of the system for itself: not to outlive another, and a name."""

import ctypes
import os
import sys

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
"""Of prctl(2), Linux; elsewhere a job may outlive its starter, and its lock keeps others away meanwhile."""


def tie(number: int, parent: int) -> None:
    """Get this signal when the parent dies, or now if it has died already."""
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died before we were tied to it
            os.kill(os.getpid(), number)


def name(text: str) -> None:
    """What `ps` and `top` call this process, up to 15 bytes."""
    if sys.platform == "linux":
        _prctl(PR_SET_NAME, ctypes.c_char_p(text.encode()[:15]))


def _prctl(option: int, value: object) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)

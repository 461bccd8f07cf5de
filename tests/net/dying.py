"""Processes that die at a named point, as if the power had failed there."""

import os

from atoll.net import crash


def killed(act, point):
    """Something done in a process of its own that dies at a point; how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.environ[crash.VARIABLE] = point
            crash._passed.clear()
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

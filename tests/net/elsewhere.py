"""`atoll …` on a machine of its own: `python -m tests.net.elsewhere NAMESPACE ARGUMENTS…`; "" is here."""

import ctypes
import os
import runpy
import sys


def go(name: str) -> None:
    """Into a network namespace, as `ip netns exec` does, but without another program."""
    with open(f"/run/netns/{name}", "rb") as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def ask_again_soon() -> None:
    """Who is told that there is no work waits a moment, not ten seconds."""
    from atoll.net.worker import Worker

    wait = Worker._wait

    def shortly(self, refusal):
        wait(self, refusal.model_copy(update={"retry_after_s": min(0.2, refusal.retry_after_s)}))

    Worker._wait = shortly


if __name__ == "__main__":
    ask_again_soon()
    namespace = sys.argv.pop(1)
    if namespace:
        go(namespace)
    runpy.run_module("atoll", run_name="__main__")

"""A program behind walls, in a fork: `python -m tests.launch.walled WALL,WALL MODULE ARGUMENTS…`."""

import ctypes
import os
import runpy
import sys

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000


def own_network() -> None:
    """A network namespace of one's own, as `unshare --user --net` gives one: it reaches nothing."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_USER | NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def no_sockets() -> None:
    """Nobody can open a socket in this process."""
    sys.addaudithook(_forbid)


def _forbid(event: str, arguments: object) -> None:
    if event.startswith("socket."):
        raise PermissionError(f"{event}: an expert has no business with sockets")


WALLS = {"own-network": own_network, "no-sockets": no_sockets}

if __name__ == "__main__":
    walls, module = sys.argv[1:3]
    del sys.argv[1:3]
    for wall in walls.split(","):
        WALLS[wall]()
    runpy.run_module(module, run_name="__main__")

"""A parent of jobs that is itself a fork of one: what that has loaded need not be loaded again.

With `play` its jobs know the stages of `tests.launch.makers` and no others.
"""

import os
import socket
import sys

from atoll.launch import forking

if __name__ == "__main__":
    line = socket.socket(fileno=os.dup(1))  # whoever starts it gives the line in place of the output
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    if sys.argv[1:] == ["play"]:
        from atoll.runs import graph
        from tests.launch.makers import PLAY

        graph.KINDS = PLAY
    forking._be(forking._serve(line))

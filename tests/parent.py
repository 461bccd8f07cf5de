"""A parent of jobs that is itself a fork of one: what that has loaded need not be loaded again.

With `play` its jobs know the stages of `tests.launch.makers` and no others; with `more FOLDER` they find the
modules of that folder, too, and are customized by it.
"""

import os
import runpy
import socket
import sys
from pathlib import Path

from atoll.launch import forking

if __name__ == "__main__":
    line = socket.socket(fileno=os.dup(1))  # whoever starts it gives the line in place of the output
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    if sys.argv[1:] == ["play"]:
        from atoll.runs import graph
        from tests.launch.makers import PLAY

        graph.KINDS = PLAY
    if sys.argv[1:2] == ["more"]:
        sys.path.insert(0, sys.argv[2])
        runpy.run_path(str(Path(sys.argv[2], "sitecustomize.py")))
    forking._be(forking._serve(line))

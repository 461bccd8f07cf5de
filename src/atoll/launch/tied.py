"""A job that does not outlive the process that started it."""

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
"""Of prctl(2), Linux; elsewhere a job may outlive its starter, and its lock keeps others away meanwhile."""


def command(arguments: Sequence[str], at_death: signal.Signals) -> list[str]:
    """The command of an `atoll` process that gets a signal when this process dies."""
    return [
        *(sys.executable, "-m", "atoll.launch.tied"),
        *(str(int(at_death)), str(os.getpid()), *arguments),
    ]


def main() -> None:
    """Tie this process to its parent, then be `atoll`."""
    number, parent, *arguments = sys.argv[1:]
    # Slurm announces the end of a job to all its processes by this one; who started us passes it on.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != int(parent):  # it died before we were tied to it
            os.kill(os.getpid(), int(number))
    sys.argv = ["atoll", *arguments]
    runpy.run_module("atoll", run_name="__main__")


if __name__ == "__main__":
    main()

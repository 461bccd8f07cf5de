"""A process dies at the point and the time that the environment names, and nowhere else."""

import signal
import subprocess
import sys

import pytest

CODE = """
from atoll.net.crash import crash_point
for count in range(1, 4):
    print("before", count, flush=True)
    crash_point("here")
    crash_point("there")
"""


@pytest.mark.parametrize(
    ("wanted", "lines", "code"),
    [("", 3, 0), ("here", 1, -signal.SIGKILL), ("there:2", 2, -signal.SIGKILL), ("here:4", 3, 0)],
)
def test_a_process_dies_where_it_is_told_to(wanted, lines, code, monkeypatch):
    monkeypatch.setenv("ATOLL_CRASH_AT", wanted)
    answer = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert answer.returncode == code
    assert len(answer.stdout.splitlines()) == lines

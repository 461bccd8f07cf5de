import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.config import RunConfig
from atoll.launch import process
from atoll.launch.job import JobSpec
from tests.machines import wait_for


def test_a_worker_is_started_with_files_alone(tmp_path):
    spec = JobSpec.of("router", RunConfig(name="a"), tmp_path)
    command = process.command(spec, signal.SIGTERM)
    assert command[1:5] == ["-m", "atoll.launch.process", str(int(signal.SIGTERM)), str(os.getpid())]
    assert command[5:] == spec.arguments()
    assert "--set" not in command


BREAKS = """
import atexit, os, pathlib, sys
class Breaks:
    def __del__(self, abort=os.abort):
        abort()
kept = sys.kept = Breaks()
atexit.register(pathlib.Path(sys.argv[1]).write_text, "told")
print("done", end="")
"""


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(75)", 75), ("sys.exit('words')", -6)])
def test_a_worker_ends_before_what_it_loaded_is_taken_apart(tmp_path, ending, code):
    """Libraries abort there now and then: their threads hold what the interpreter takes away."""
    (tmp_path / "breaks.py").write_text(BREAKS + ending)
    command = [sys.executable, "-m", "atoll.launch.process", "15", str(os.getpid()), "breaks"]
    path = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    ended = subprocess.run(
        [*command, str(tmp_path / "told")], env=path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == "done", "what was written last is there"
    assert (tmp_path / "told").read_text() == "told"


STARTER = """
import os, signal, subprocess, sys
code = "import signal, sys, time\\n"
code += "signal.signal(15, lambda *_: sys.exit(open(sys.argv[1], 'w').close()))\\ntime.sleep(60)"
open(sys.argv[2], "w").write(code)
subprocess.Popen([sys.executable, "-m", "atoll.launch.process", "15", str(os.getpid()), "tied", sys.argv[1]],
    env={**os.environ, "PYTHONPATH": f"{os.path.dirname(sys.argv[2])}:{os.environ.get('PYTHONPATH', '')}"})
sys.stdin.read()
"""


def test_a_worker_does_not_outlive_who_started_it(tmp_path):
    sign = tmp_path / "asked"
    command = [sys.executable, "-c", STARTER, str(sign), str(tmp_path / "tied.py")]
    starter = subprocess.Popen(command, stdin=subprocess.PIPE)
    listed = ["ps", "-o", "pid=,args=", "--ppid", str(starter.pid)]

    def is_up():
        found = subprocess.run(listed, capture_output=True, text=True, check=False).stdout
        return "atoll.launch.process" in found

    wait_for(is_up, starter)
    wait_for(lambda: _handles(listed), starter)
    starter.kill()
    starter.communicate()
    other = subprocess.Popen(["sleep", "60"])
    try:
        wait_for(sign.exists, other)
    finally:
        other.kill()
        other.wait()


def _handles(listed):
    """Whether the worker has its handler for SIGTERM, as the system says."""
    found = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split()
    if not found:
        return False
    status = Path(f"/proc/{found[0]}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & (1 << (signal.SIGTERM - 1)))


WORKER: Any = object()


class Asked:
    """A parent that only keeps what it was asked for."""

    def start(self, request, out, err, fresh):
        self.request, self.files = request, (out, err)
        return WORKER


def test_a_worker_that_is_forked_is_told_the_same(tmp_path):
    spec, parent = JobSpec.of("expert 3", RunConfig(name="a"), tmp_path), Asked()
    with (tmp_path / "log").open("wb") as log:
        assert process.fork(spec, parent, log=log, variables={"OMP_NUM_THREADS": "5"}) is WORKER
        assert parent.files == (log.fileno(), log.fileno())
    asked = parent.request
    assert [asked.module, *asked.arguments] == spec.arguments()
    assert asked.environment == process.environment(spec, {"OMP_NUM_THREADS": "5"})
    assert asked.environment["ATOLL_RUNS"] == str(tmp_path.parent)
    assert asked.at_death == signal.SIGTERM
    assert asked.imports == ["atoll.launch.work", "atoll.train.jobs"]
    assert not asked.heir

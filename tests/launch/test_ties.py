import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="it is asked of Linux")


def program(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("parent", "code"), [(None, 0), (1 << 30, -signal.SIGTERM)])
def test_whose_parent_has_died_already_gets_the_signal_at_once(parent, code):
    assert program(f"from atoll.launch import ties; ties.tie(15, {parent or os.getpid()})").returncode == code


def test_a_process_has_a_name_of_fifteen_bytes():
    code = "from atoll.launch import ties; ties.name('a name that is far too long')"
    done = program(f"{code}; print(open('/proc/self/comm').read(), end='')")
    assert done.stdout == "a name that is \n"

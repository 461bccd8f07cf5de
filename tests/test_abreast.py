"""Tests by several processes end as by one, and whoever dies is told."""

import os
import re
import subprocess
import sys

import pytest

from tests import commands

CONFTEST = """
import os, pytest
from pathlib import Path
from tests import abreast

@pytest.fixture(scope="session", autouse=True)
def server(tmp_path_factory):
    place = tmp_path_factory.mktemp("server")
    yield place
    with (Path(__file__).parent / "closed").open("a") as file:
        file.write(f"{os.getpid()} {place}\\n")

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    groups = abreast.grouped(session.items, lambda name: name.split("::")[0])
    again = [group for group in groups if "again" in group[0].nodeid]
    other = lambda number: os.environ.update(OTHER=str(number))
    abreast.run(session, abreast.Crew(2, groups), abreast.Crew(1, again, other, " once more"))
    return True
"""
FILES = {
    "test_a": "def test_told(capfd):\n    print('aloud')\n    assert 'aloud' in capfd.readouterr().out\n",
    "test_b": "def test_wrong():\n    print('before it broke')\n    assert [1] == [2]\n",
    "test_c": "import pytest\ndef test_left():\n    pytest.skip('not here')\n",
    "test_d": "def test_own(tmp_path, server):\n    assert tmp_path.parts[:-2] == server.parts[:-2]\n",
}
DEATH = "import os\ndef test_dies():\n    os._exit(3)\ndef test_never_run():\n    pass\n"
ORPHAN = """
import os, signal, time
def test_of_a_killed_suite():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
"""


@pytest.fixture
def suite(tmp_path):
    """Give what pytest says about some files, and how it ends."""

    def run(files, *options):
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(commands.ROOT)}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env={**os.environ, **plugins},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_they_end_as_by_one_process(suite, tmp_path):
    ended = suite(FILES, "-v", "-rsf")
    assert ended.returncode == 1 and re.search("1 failed, 2 passed, 1 skipped", ended.stdout), ended.stdout
    assert "assert [1] == [2]" in ended.stdout and "before it broke" in ended.stdout
    assert "test_c.py:3: not here" in ended.stdout
    assert "test_wrong" in ended.stdout.partition("short test summary")[2]
    closed = [line.split() for line in (tmp_path / "closed").read_text().splitlines()]
    processes, places = zip(*closed, strict=True)
    assert len(set(processes)) == len(closed) == len(set(places)), "each has its own, and closes it"


def test_a_process_that_dies_is_told_and_others_go_on(suite):
    ended = suite({"test_0": DEATH, **FILES})
    assert ended.returncode == 1 and "2 failed, 2 passed, 1 skipped" in ended.stdout, ended.stdout
    assert "the process of test_0.py::test_dies died" in ended.stdout and "assert [1] == [2]" in ended.stdout


def test_what_is_run_once_more_is_told_apart(suite):
    """Each time in a process of its own, which is another."""
    told = "import os\ndef test_it():\n    assert os.environ.get('OTHER') is None\n"
    ended = suite({"test_again": told, **FILES}, "-v")
    assert "2 failed, 3 passed, 1 skipped" in ended.stdout, ended.stdout
    assert "FAILED test_again.py::test_it once more - AssertionError: assert '2' is None" in ended.stdout
    assert "[100%]" in ended.stdout and "[120%]" not in ended.stdout


def test_the_first_failure_is_the_last_test_where_that_is_asked_for(suite):
    ended = suite({"test_0": FILES["test_b"]}, "-x")
    assert ended.returncode == 1 and "stopping after 1 failures" in ended.stdout, ended.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes cannot be tied to another")
def test_nobody_outlives_a_suite_that_was_killed(suite, tmp_path):
    """What they hold open, as the output that is read here, is closed by an end of their own."""
    ended = suite({"test_0": ORPHAN})
    assert ended.returncode == -9
    assert "server" in (tmp_path / "closed").read_text()

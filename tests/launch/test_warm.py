"""Jobs that are forked: each as good as a fresh interpreter, and none left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll.launch import warm

pytestmark = pytest.mark.skipif(not warm.FORKS, reason="forks are not sound here")

PROGRAM = """
import atexit, json, os, signal, sys, threading, time
from pathlib import Path

def kept(*_):
    Path(sys.argv[2] + ".asked").write_text("asked")
    sys.exit(75)

facts = {
    "pid": os.getpid(), "session": os.getsid(0), "arguments": sys.argv[1:], "folder": os.getcwd(),
    "variable": os.environ.get("ATOLL_OTHER"), "name": Path("/proc/self/comm").read_text().strip(),
    "loaded": sorted({"decimal", "colorsys"} & set(sys.modules)), "main": __name__,
    "files": sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in (0, 1, 2)),
}
if sys.argv[1] == "wait":
    signal.signal(signal.SIGTERM, kept)
Path(sys.argv[2]).write_text(json.dumps(facts))
if sys.argv[1] == "wait":
    time.sleep(600)
if sys.argv[1] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "break":
    raise RuntimeError("broken")
if sys.argv[1] == "words":
    sys.exit("in words")
if sys.argv[1] == "late":
    threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread"))).start()
if sys.argv[1] in ("last", "late"):
    atexit.register(print, "at last")
    print("not flushed")
    sys.exit()
print("out", flush=True)
print("err", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def environment(tmp_path):
    """In which the program can be found."""
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def parent(environment):
    made = warm.Parent.fresh(environment)
    yield made
    made.close()


@pytest.fixture
def start(parent, environment, tmp_path):
    """Start the program with a word and a file to write to."""

    def make(word, *, out=None, heir=False, fresh=None, **others):
        request = warm.Request(
            "program",
            [word, str(tmp_path / word)],
            {**environment, **others},
            str(tmp_path),
            f"job {word}",
            int(signal.SIGTERM),
            ["decimal"],
            heir,
        )
        with (tmp_path / f"{word}.out").open("wb") as log:
            return parent.start(request, log.fileno(), log.fileno(), fresh or pytest.fail)

    return make


def wait_until(condition):
    for _ in range(30_000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it does not happen")


def facts(path):
    wait_until(lambda: path.is_file() and path.read_text().endswith("}"))
    return json.loads(path.read_text())


def test_it_is_a_process_of_its_own(start, tmp_path):
    job = start("0", ATOLL_OTHER="mine")
    assert job.wait() == 0 == job.returncode == job.poll()
    said = facts(tmp_path / "0")
    assert said["pid"] == job.pid != os.getpid()
    assert said["session"] == said["pid"]
    assert said["arguments"] == ["0", str(tmp_path / "0")]
    assert said["folder"] == str(tmp_path)
    assert said["variable"] == "mine" and "ATOLL_OTHER" not in os.environ
    assert said["name"] == "job 0"
    assert said["main"] == "__main__"
    assert said["loaded"] == ["decimal"], "what was named is there before it begins, and no more"
    assert said["files"] == ["/dev/null", str(tmp_path / "0.out"), str(tmp_path / "0.out")]
    assert (tmp_path / "0.out").read_text() == "out\nerr\n"


def test_how_it_ends_is_told_for_each(start, tmp_path):
    jobs = {word: start(word) for word in ("die", "3", "break", "0")}
    assert {word: job.wait() for word, job in jobs.items()} == {"die": -9, "3": 3, "break": 1, "0": 0}
    assert "RuntimeError: broken" in (tmp_path / "break.out").read_text()
    assert len({facts(tmp_path / word)["pid"] for word in jobs}) == 4


def test_it_loses_nothing_at_its_end(start, tmp_path):
    """Neither what was said and not written yet, what is due at the exit, nor threads to be waited for."""
    jobs = {word: start(word) for word in ("last", "late", "words")}
    assert {word: job.wait() for word, job in jobs.items()} == {"last": 0, "late": 0, "words": 1}
    said = {word: (tmp_path / f"{word}.out").read_text() for word in jobs}
    assert said["last"] == "not flushed\nat last\n"
    assert sorted(said["late"].splitlines()) == ["a thread", "at last", "not flushed"]
    assert said["words"] == "in words\n"


def test_a_request_to_stop_reaches_one_alone(start, tmp_path):
    waiting, other = start("wait"), start("0")
    facts(tmp_path / "wait")
    assert other.wait() == 0
    assert waiting.poll() is None
    waiting.terminate()
    assert waiting.wait() == 75
    waiting.terminate()  # nobody is there any more: nothing happens
    other.kill()
    assert (waiting.returncode, other.returncode) == (75, 0)


def test_jobs_are_asked_to_stop_when_their_parent_is_gone(start, parent, tmp_path):
    job = start("wait")
    facts(tmp_path / "wait")
    parent._process.kill()
    assert job.wait() == -9
    wait_until((tmp_path / "wait.asked").is_file)
    later = start("1", fresh=lambda: Fresh(4))
    assert later.wait() == 4, "and the next is started afresh"
    assert parent.refuses


class Fresh:
    """A fresh interpreter instead."""

    def __init__(self, code):
        self.code, self.pid, self.signals = code, 1, []

    def wait(self):
        return self.code

    def poll(self):
        return self.code

    def send_signal(self, number):
        self.signals.append(number)


THREADED = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"


def test_a_parent_with_threads_is_not_forked(start, parent, tmp_path):
    (tmp_path / "decimal.py").write_text(THREADED)
    instead = Fresh(5)
    job = start("0", fresh=lambda: instead)
    assert job.wait() == 5 == job.poll()
    assert job.pid == 1
    job.terminate()
    assert instead.signals == [signal.SIGTERM]
    assert not (tmp_path / "0").exists()
    assert parent.refuses


STARTER = """
import os, signal, sys, time
from atoll.launch import warm
parent = warm.Parent.fresh(dict(os.environ))
request = warm.Request("program", ["wait", sys.argv[1]], dict(os.environ), ".", "job", 15, [])
job = parent.start(request, 1, 2, None)
print(job.pid, parent._process.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_starter_leaves_neither_jobs_nor_parents(environment, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "w")],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        facts(tmp_path / "w")
        pids = [int(word) for word in starter.stdout.readline().split()]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        starter.kill()
    wait_until((tmp_path / "w.asked").is_file)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_each_environment_has_a_parent_but_for_what_is_ours(environment):
    parents = warm.Parents()
    try:
        first = parents.of(environment)
        assert parents.of({**environment, "ATOLL_RUNS": "elsewhere"}) is first
        assert parents.of({**environment, "OMP_NUM_THREADS": "3"}) is not first
        first.refuses = True
        assert parents.of(environment) is None
    finally:
        parents.close()


def test_without_forks_there_are_no_parents(environment, monkeypatch):
    monkeypatch.setattr(warm, "FORKS", False)
    assert warm.Parents().of(environment) is None


HEIR = """
import os, sys
from pathlib import Path
from atoll.launch import warm
parent = warm.inherited(dict(os.environ))
assert parent is not None and warm.Parents().of(dict(os.environ)) is parent
assert warm.inherited({**os.environ, "OMP_NUM_THREADS": "7"}) is None
request = warm.Request("program", ["3", sys.argv[1]], dict(os.environ), os.getcwd(), "job", 15, [])
sys.exit(parent.start(request, 1, 2, None).wait())
"""


def test_a_job_may_get_a_parent_for_jobs_of_its_own(environment, parent, tmp_path):
    (tmp_path / "heir.py").write_text(HEIR)
    request = warm.Request(
        "heir", [str(tmp_path / "a")], environment, str(tmp_path), "heir", 15, ["decimal"], True
    )
    with (tmp_path / "log").open("wb") as log:
        job = parent.start(request, log.fileno(), log.fileno(), pytest.fail)
    assert job.wait() == 3, (tmp_path / "log").read_text()
    said = facts(tmp_path / "a")
    assert said["loaded"] == ["decimal"], "nothing was loaded again"
    assert (tmp_path / "log").read_text() == "out\nerr\n"

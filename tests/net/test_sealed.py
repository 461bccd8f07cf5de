"""A job can reach neither network nor key, and does not outlive who started it."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from atoll import threads
from atoll.launch import warm
from atoll.net import sealed


@pytest.fixture(params=[False, True], ids=["fresh", "forked"])
def job(tmp_path, monkeypatch, request):
    """Run some lines as a sealed job; what it printed, as JSON."""
    hidden = tmp_path / "keys"
    hidden.mkdir()
    (hidden / "device.key").write_text("secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    forked, parents = request.param, warm.Parents()
    monkeypatch.setattr(warm, "INHERITED", None)

    def run(lines, **given):
        (tmp_path / "lines.py").write_text(textwrap.dedent(lines))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
        order = sealed.Order("lines", [], folder, folder, hidden, **given)
        if forked:
            process = sealed.fork(order, parents, tmp_path / "log")
        else:
            with (tmp_path / "log").open("wb") as log:
                process = sealed.started(order, log)
        process.wait()
        return json.loads((tmp_path / "log").read_text().splitlines()[-1])

    yield run
    parents.close()


def test_threads_of_a_job_sleep_while_they_wait(tmp_path, monkeypatch):
    """Libraries read that as they are loaded; a worker has settled it for itself before."""
    for name in threads.WAITING:
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):
        assert threads.WAITING.items() <= sealed.environment(tmp_path, threads.variables(2)).items()
        threads.settle()


def test_there_is_nobody_to_talk_to(job):
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = job(
            f"""
            import json, socket, subprocess, sys
            def attempt(action):
                try:
                    return action() and "did"
                except OSError as error:
                    return type(error).__name__
            raw = lambda: socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 2)
            print(json.dumps([attempt(raw), attempt(lambda: subprocess.run(["true"])),
                              attempt(lambda: socket.getaddrinfo("localhost", 80))]))
            """
        )
    assert answer == ["PermissionError"] * 3


def test_where_it_is_permitted_there_is_no_network_at_all():
    """In C, where Python's refusals do not reach: a namespace with a loopback that is down."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            "import socket, sys; from atoll.net import sealed; left = sealed.leave_the_network()\n"
            f"s = socket.socket(); code = s.connect_ex(('127.0.0.1', {server.getsockname()[1]}))\n"
            "print(int(left), code)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left, status = map(int, done.stdout.split())
    assert (status != 0) == bool(left)
    assert left or os.getuid() != 0


def test_neither_key_nor_environment(job, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    answer = job(
        f"""
        import json, os
        def attempt(path):
            try:
                return open(path).read()
            except PermissionError as error:
                return str(error)
        os.symlink({str(tmp_path / "keys")!r}, "link")
        print(json.dumps([attempt({str(tmp_path / "keys" / "device.key")!r}), attempt("link/device.key"),
                          os.environ.get("AWS_SECRET_ACCESS_KEY"), os.environ["HOME"]]))
        """
    )
    assert answer == ["a sealed job may not read the key"] * 2 + [None, str(tmp_path / "folder")]


def test_a_file_has_a_largest_size(job):
    answer = job(
        """
        import json
        try:
            with open("large", "wb") as file:
                file.write(b"x" * 5000)
            print(json.dumps("written"))
        except OSError as error:
            print(json.dumps(error.errno))
        """,
        most=1000,
    )
    assert answer == 27  # EFBIG


def test_it_dies_with_who_started_it(tmp_path):
    code = f"""
import sys, time
from pathlib import Path
from atoll.net import sealed
folder = Path({str(tmp_path)!r})
with (folder / "log").open("wb") as log:
    job = sealed.start("waiting", [], folder=folder, hidden=folder / "keys", log=log, variables={{}})
print(job.pid, flush=True)
time.sleep(100)
"""
    (tmp_path / "waiting.py").write_text("import time\nopen('here', 'w').close()\ntime.sleep(100)\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    worker = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    pid = int(worker.stdout.readline())
    while not (tmp_path / "here").exists():
        assert worker.poll() is None
        time.sleep(0.02)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    for _ in range(30_000):
        if not _lives(pid):
            return
        time.sleep(0.02)
    raise AssertionError("the job outlived its worker")


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False

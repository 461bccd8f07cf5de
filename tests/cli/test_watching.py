"""`atoll watch` as a person starts it."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

from typer.testing import CliRunner

import atoll.cli  # noqa: F401 - adds the commands
from atoll.cli.options import app


def test_it_says_where_it_is_and_shows_the_run(prepared):
    run = prepared()
    process = subprocess.Popen(
        [sys.executable, "-m", "atoll", "watch", str(run.path), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    try:
        address = json.loads(process.stdout.readline())["address"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        with urllib.request.urlopen(f"{address}/watch") as answer:
            assert "expert 2" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        process.wait(600)
    finally:
        process.kill()
        process.communicate()


def test_mistakes_are_told_in_one_line(tmp_path):
    answer = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert answer.exit_code == 1 and "is not a run" in str(answer.exception)
    answer = CliRunner().invoke(app, ["watch", str(tmp_path), "--host", "0.0.0.0"])
    assert answer.exit_code == 1 and "--token" in str(answer.exception)

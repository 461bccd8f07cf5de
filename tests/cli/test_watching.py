"""`atoll watch` as a person starts it."""

import json
import re
import signal
import urllib.request

from typer.testing import CliRunner

import atoll.cli  # noqa: F401 - adds the commands
from atoll.cli.options import app
from tests import commands


def test_it_says_where_it_is_and_shows_the_run(prepared):
    run = prepared()
    process = commands.Command(["watch", run.path, "--port", "0", "--json"])
    try:
        address = json.loads(process.line())["address"]
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

"""`atoll join` as a person types it: mistakes are told in one line, before anything is made."""

import pytest
from typer.testing import CliRunner

import atoll.cli  # noqa: F401 - adds the commands
from atoll.cli.options import app


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run.example.org"], "is no address"),
        (["http://127.0.0.1:9", "--hours", "25-3"], "--hours 25-3"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, arguments, words):
    answer = CliRunner().invoke(app, ["join", *arguments, "--home", str(tmp_path / "home")])
    assert answer.exit_code == 1 and words in str(answer.exception)


def test_limits_are_named_in_the_help():
    shown = CliRunner().invoke(app, ["join", "--help"]).output
    assert all(
        f"--{name}" in shown for name in ("hours", "idle", "gpus", "cpus", "disk", "mbit", "once", "test")
    )

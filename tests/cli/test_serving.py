import sys

import pytest

import atoll.cli  # noqa: F401 - it adds the commands to the app
from atoll.cli.options import app
from atoll.errors import ConfigError


def call(*arguments):
    app([str(argument) for argument in arguments], standalone_mode=False)


def test_the_command_passes_on_what_was_said(monkeypatch, capsys, tmp_path):
    from atoll.serve import server

    calls = []

    def serve(address, host, port, limits, *, ready, **rest):
        ready("http://somewhere")
        calls.append((address, host, port, limits.num, rest))

    monkeypatch.setattr(server, "serve", serve)
    call("serve", tmp_path, "--port", 1, "--token", "t" * 8, "--limit", "num=3", "--set", "steps=2")
    rest = {"token": "t" * 8, "anybody": False, "show_data": False, "policies": None, "steps": 2}
    assert calls == [(tmp_path, "127.0.0.1", 1, 3, rest)]
    assert capsys.readouterr().out == f"Serving {tmp_path} at http://somewhere (Ctrl-C stops)\n"


def test_who_lacks_the_extra_is_told_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'atoll\[serve\]'"):
        call("serve", tmp_path)


def test_help_needs_none_of_it():
    import subprocess

    code = (
        "import sys, atoll.cli; from typer.testing import CliRunner; "
        "print(CliRunner().invoke(atoll.cli.app, ['serve', '--help']).output); "
        "print(sorted({'torch', 'fastapi', 'uvicorn', 'numpy'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--token" in answer.stdout
    assert answer.stdout.strip().endswith("[]")

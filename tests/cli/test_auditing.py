"""`atoll audit` says what holds on one page, for people and for programs, and fails if something is false."""

import json

import pytest
from typer.testing import CliRunner

from atoll.cli.options import app
from tests.net.past import Past, honest, sha


def laid_out(past: Past, folder) -> str:
    for name, data in past.files.items():
        (folder / "log" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "log" / name).write_bytes(data)
    (folder / "sha256").mkdir(exist_ok=True)
    for digest, data in past.artifacts.items():
        (folder / "sha256" / digest).write_bytes(data)
    return str(folder)


@pytest.fixture
def folder(tmp_path) -> str:
    return laid_out(honest().publish(), tmp_path / "store")


def test_a_folder_is_audited_on_one_page(folder, tmp_path):
    answer = CliRunner().invoke(app, ["audit", folder, "--replay", "0", "--save", str(tmp_path / "seen")])
    assert answer.exit_code == 0, answer.output
    page = answer.stdout.splitlines()
    assert len(page) < 45
    assert "What holds" in page
    assert "What could not be checked" in page
    assert "What does not hold" not in page
    again = ["audit", folder, "--replay", "0", "--since", str(tmp_path / "seen"), "--json"]
    facts = json.loads(CliRunner().invoke(app, again).stdout)
    assert facts["holds"] and facts["checks"]["past"]["state"] == "holds"


def test_what_is_false_is_named_and_fails(folder, tmp_path):
    (tmp_path / "store" / "sha256" / sha("state 1")).write_bytes(b"state X")
    answer = CliRunner().invoke(app, ["audit", folder, "--replay", "0"])
    assert answer.exit_code == 1
    assert "What does not hold" in answer.stdout
    assert "is another file than was accepted" in answer.stdout
    answer = CliRunner().invoke(app, ["audit", folder, "--replay", "0", "--json"])
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["checks"]["artifacts"]["state"] == "fails"


def test_a_folder_without_a_log_is_one_line(tmp_path):
    answer = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert "has no log in it" in str(answer.exception)

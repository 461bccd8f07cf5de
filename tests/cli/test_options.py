"""The options that commands share mean the same in each of them."""

import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import atoll.cli
from atoll.cli.options import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def options_of(name):
    return {option: each for each in COMMANDS[name].params for option in each.opts}


def test_help_is_what_one_gets_for_nothing_said():
    text = CliRunner().invoke(app, []).output
    assert "many islands of compute" in text
    for name in COMMANDS:
        assert f" {name} " in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_said_in_words_and_none_is_required(name):
    for option, each in options_of(name).items():
        if option.startswith("-"):
            assert getattr(each, "help", None), option
            assert not each.required, option


@pytest.mark.parametrize("name", COMMANDS)
def test_json_and_starting_over_are_off_unless_asked_for(name):
    options = options_of(name)
    for option in ("--json", "--start-over"):
        if option in options:
            assert options[option].is_flag
            assert not options[option].default


def test_settings_can_be_changed_several_at_a_time():
    several = [name for name in COMMANDS if "--set" in options_of(name)]
    assert {"run", "sample", "evaluate", "study", "import"} <= set(several)
    for name in several:
        assert options_of(name)["--set"].multiple, name


def test_the_version_is_told():
    assert CliRunner().invoke(app, ["--version"]).output == f"atoll {atoll.__version__}\n"


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == atoll.__version__


def test_shells_complete_commands_and_options():
    def completed(words, number):
        told = {"_ATOLL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        return CliRunner().invoke(app, [], prog_name="atoll", env=told).output.split()

    assert set(completed("atoll ex", 1)) == {"expert", "export"}
    assert "--start-over" in completed("atoll run --st", 2)
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output

"""What a recipe can get wrong is said by `show`, `plan` and the first second of `run`."""

import json
from pathlib import Path

import numpy as np
import pytest

import atoll.cli  # noqa: F401 - it adds the commands to the app
from atoll.cli.options import app
from atoll.data import hub
from atoll.errors import ConfigError, DataError
from atoll.runs import Run

WRONG = {
    "text without an encoder": (["condition.kind=text"], r"set encode\.text"),
    "a patch that does not divide": (["expert.patch=[5,5]"], r"\[4, 4\] would fit"),
    "a patch of another rank": (["router.patch=[2]"], r"router\.patch = \[2\] is for 1 axis"),
    "heads that do not divide": (["expert.heads=3"], "width 16 is not a multiple of heads 3"),
    "a class without labels": (
        ["condition.kind=class", "data.source={series}", "expert.patch=[8]", "router.patch=[8]"],
        "the samples have no labels",
    ),
}


def call(*arguments):
    """A command in this process."""
    app([str(argument) for argument in arguments], standalone_mode=False)


@pytest.mark.parametrize("command", ["show", "plan", "run"])
@pytest.mark.parametrize(("overrides", "said"), WRONG.values(), ids=WRONG.keys())
def test_said_before_spent(tiny, tmp_path, command, overrides, said):
    np.savez(tmp_path / "series.npz", x=np.zeros((20, 2, 64), np.float32))
    settings = [part.replace("{series}", str(tmp_path / "series.npz")) for part in overrides]
    with pytest.raises(ConfigError, match=said) as caught:
        call(command, tiny, *(word for text in settings for word in ("--set", text)))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_series_gets_a_patch(tiny, tmp_path, capsys):
    np.savez(tmp_path / "series.npz", x=np.zeros((20, 2, 128), np.float32))
    text = tiny.read_text().replace("patch = [7, 7]\n", "")
    tiny.write_text(text.replace("fashion-5k", str(tmp_path / "series.npz")))
    call("plan", tiny, "--json")
    planned = json.loads(capsys.readouterr().out)
    assert planned["data"]["shape"] == [2, 128]
    assert planned["jobs"]["expert 0"]["tokens"] == 64


def test_samples_that_are_not_here_are_no_mistake_of_the_recipe(tiny, capsys, caplog):
    call("show", tiny, "--set", "data.source=elsewhere.npz")
    assert json.loads(capsys.readouterr().out)["data"]["source"] == str(Path.cwd() / "elsewhere.npz")
    assert "cannot be looked at yet" in caplog.text


@pytest.mark.parametrize("command", ["prepare", "run"])
def test_without_a_network_nothing_slow_is_loaded(tiny, tmp_path, monkeypatch, command):
    """Seconds of loading torch, and a run's folder, come after the question whether there is a Hub."""

    def check_reachable(name):
        raise DataError(f"{name} cannot be reached")

    monkeypatch.setattr(hub, "check_reachable", check_reachable)
    monkeypatch.setattr(Run, "begun", None)
    with pytest.raises(DataError, match="owner/name cannot be reached"):
        call(command, tiny, "--set", "data.source=hub:owner/name")
    assert not (tmp_path / "runs").exists()


def test_the_page_says_what_its_five_lines_would_cost(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(page.split("```toml\n", 1)[1].split("```", 1)[0])
    call("plan", tmp_path / "mine.toml", "--json")
    hours = json.loads(capsys.readouterr().out)["total"]["device_hours"]
    assert f"says {hours:.0f} hours of an A100" in page

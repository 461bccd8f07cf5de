"""Commands hand on what they were given, and print what came of it; the rooms behind them are pretended."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import atoll.cli  # noqa: F401 - adds the commands
from atoll.cli.options import app
from atoll.publish import export
from atoll.sampling import opening, sample
from atoll.train import imported


def atoll_says(*arguments):
    """What a command prints, in this process."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def sampled(monkeypatch):
    """Calls of the rooms that sample."""
    calls = []

    def draw(opened, out, **settings):
        calls.append((opened, out, settings))
        return {"samples": str(out / "samples.npy")}

    monkeypatch.setattr(opening, "open_address", lambda folder: f"opened {folder.name}")
    monkeypatch.setattr(sample, "sample", draw)
    monkeypatch.setattr(sample, "strategy_sentence", lambda written: "Drawn somehow.")
    return calls


def test_options_and_settings_reach_the_sampler(sampled, tmp_path):
    options = ("--num", "3", "--strategy", "top-2", "--label", "a", "--label", "b", "--set", "resident=1")
    text = atoll_says("sample", "runs/a", *options, "--out", tmp_path, "--json")
    ((opened, out, settings),) = sampled
    assert (opened, out) == ("opened a", tmp_path)
    assert settings.pop("progress") is None, "a program wants no bar"
    assert settings == {
        **{"num": 3, "strategy": "top-2"},
        **{"label": ["a", "b"], "prompt": None, "resident": 1, "own": True},
    }
    assert json.loads(text) == {"samples": str(tmp_path / "samples.npy")}


def test_what_is_set_is_not_undone_by_options_that_nobody_gave(sampled, tmp_path):
    said = ("--set", "guidance=1.5", "--set", "sample.steps=7")  # with its section or without
    atoll_says("sample", "runs/a", *said, "--steps", "9", "--out", tmp_path, "--json")
    settings = sampled[0][2]
    assert (settings["guidance"], settings["steps"]) == (1.5, 9)
    assert "seed" not in settings and "protect" not in settings


def test_without_a_folder_the_default_is_not_the_persons_own(sampled, tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "default_out", lambda folder: tmp_path / "samples-2")
    text = atoll_says("sample", "runs/a")
    ((_, out, settings),) = sampled
    assert (out, settings["own"]) == (tmp_path / "samples-2", False)
    assert text == f"Drawn somehow.\nWrote {out / 'samples.npy'}\n"


def test_an_export_says_where_it_is(monkeypatch):
    monkeypatch.setattr(opening, "open_run", lambda folder: "opened")
    monkeypatch.setattr(export, "export", lambda *given: {"address": "|".join(given)})
    assert atoll_says("export", "a", "hub:me/it", "--license", "mit") == "Exported to opened|hub:me/it|mit\n"
    assert json.loads(atoll_says("export", "a", "b", "--json")) == {"address": "opened|b|unknown"}


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [("hub:owner/model", "model"), ("a/b.safetensors", "b"), ("folder/c/", "c"), ("d", "d")],
)
def test_an_import_is_named_after_what_it_brings_in(checkpoint, name, monkeypatch):
    contents = SimpleNamespace(recipe="[expert]", facts=lambda: {"kind": "expert"})
    calls = []

    def bring_in(*given, start_over):
        calls.append((*given, start_over))
        return SimpleNamespace(contents=contents)

    monkeypatch.setattr(imported, "bring_in", bring_in)
    told = json.loads(atoll_says("import", checkpoint, "--set", "a=1", "--start-over", "--json"))
    assert told == {"folder": f"imported/{name}", "kind": "expert"}
    ((source, folder, mapping, overrides, start_over),) = calls
    assert (source, str(folder), mapping, overrides) == (checkpoint, f"imported/{name}", None, ["a=1"])
    assert start_over

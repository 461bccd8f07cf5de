"""The commands as a person gives them, from one's own data to a run that has forgotten."""

import json

import numpy as np

from tests import commands
from tests.components.conftest import own_pictures


def atoll(*arguments, code=0):
    done = commands.run(*arguments)
    assert done.returncode == code, done.stderr
    return done


def test_a_component_comes_and_goes(finished, tiny, tmp_path):
    np.savez(tmp_path / "mine.npz", images=own_pictures())
    settings = ("component.licence='cc0'", "component.samples=8", "expert.steps=2")
    changes = [word for setting in settings for word in ("--set", setting)]
    where = ("--data", tmp_path / "mine.npz", "--base", finished.path, "--out", tmp_path / "mine")
    made = atoll("component", tiny, *where, *changes, "--json")
    assert json.loads(made.stdout)["card"]["licence"] == "cc0"
    added = json.loads(atoll("add", finished.path, tmp_path / "mine", "--json").stdout)
    assert (added["number"], added["name"]) == (3, "mine")
    only = ("--allow", "licence in {cc0, cc-by}", "--num", "3", "--steps", "2", "--json")
    drawn = json.loads(atoll("sample", finished.path, "--out", tmp_path / "a", *only).stdout)
    assert drawn["makers"] == {"3": 3}
    refused = atoll("sample", finished.path, "--out", tmp_path / "b", "--allow", "licence == mit", code=1)
    assert "no part may be asked by this rule" in refused.stderr
    guarded = atoll(
        "sample", finished.path, "--out", tmp_path / "c", "--protect", "--num", "2", "--steps", "2"
    )
    assert "Strategy full" in guarded.stdout
    assert "This is no guarantee" in guarded.stdout
    gone = json.loads(atoll("drop", finished.path, "3", "--json").stdout)
    assert gone["serving"] == [0, 1, 2]
    assert "no part 3" in atoll("drop", finished.path, "3", code=1).stderr
    asked = atoll("forget", finished.path, code=1)
    assert "say what to forget" in asked.stderr
    asked = atoll("forget", finished.path, "--start", "maybe", code=1)
    assert "--start is keep or retrain" in asked.stderr
    refused = atoll("component", tiny, code=1)
    assert "--base" in refused.stderr

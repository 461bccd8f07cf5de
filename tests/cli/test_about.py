"""What a recipe can get wrong is said by `show`, `plan` and the first second of `run`."""

import json

import numpy as np
import pytest

from tests.cli.test_stages import atoll, one_line

WRONG = {
    "text without an encoder": (["condition.kind=text"], "set encode.text"),
    "a patch that does not divide": (["expert.patch=[5,5]"], "[4, 4] would fit"),
    "a patch of another rank": (["router.patch=[2]"], "router.patch = [2] is for 1 axis"),
    "heads that do not divide": (["expert.heads=3"], "width 16 is not a multiple of heads 3"),
    "a class without labels": (
        ["condition.kind=class", "data.source={series}", "expert.patch=[8]", "router.patch=[8]"],
        "the samples have no labels",
    ),
}


@pytest.mark.parametrize("command", ["show", "plan", "run"])
@pytest.mark.parametrize(("overrides", "said"), WRONG.values(), ids=WRONG.keys())
def test_said_before_spent(tiny, tmp_path, command, overrides, said):
    np.savez(tmp_path / "series.npz", x=np.zeros((20, 2, 64), np.float32))
    settings = [part.replace("{series}", str(tmp_path / "series.npz")) for part in overrides]
    done = atoll(command, tiny, *(word for text in settings for word in ("--set", text)))
    assert said in one_line(done)
    assert not (tmp_path / "runs").exists()


def test_a_series_gets_a_patch(tiny, tmp_path):
    np.savez(tmp_path / "series.npz", x=np.zeros((20, 2, 128), np.float32))
    text = (
        tiny.read_text().replace("patch = [7, 7]\n", "").replace("fashion-5k", str(tmp_path / "series.npz"))
    )
    tiny.write_text(text)
    planned = json.loads(atoll("plan", tiny, "--json", check=0).stdout)
    assert planned["data"]["shape"] == [2, 128]
    assert planned["jobs"]["expert 0"]["tokens"] == 64


def test_samples_that_are_not_here_are_no_mistake_of_the_recipe(tiny):
    done = atoll("show", tiny, "--set", "data.source=elsewhere.npz", check=0)
    assert json.loads(done.stdout)["data"]["source"] == "elsewhere.npz"
    assert "cannot be looked at yet" in done.stderr

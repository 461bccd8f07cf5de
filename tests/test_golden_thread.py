"""The functions that the README names are those that run: a tiny run is traced from the command line on."""

import json
import re
from pathlib import Path

import pytest

from tests import commands, traced

ROOT = Path(__file__).parents[1]


def named() -> list[tuple[str, str]]:
    """File and function of every step of the golden thread."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    thread = text[text.index("The golden thread") : text.index("More in [docs/how-it-works.md]")]
    steps = re.findall(r"^\d\. \[`(\w+)\.(\w+)`\]\((src/[^)]+)\)", thread, flags=re.MULTILINE)
    return [(path, f"{owner}.{name}" if owner[0].isupper() else name) for owner, name, path in steps]


@pytest.fixture(scope="module")
def reached(tmp_path_factory):
    """All functions of ours that a tiny `atoll run` calls, in whatever process."""
    from tests.beforehand import TINY

    place = tmp_path_factory.mktemp("thread")
    (place / "reached").mkdir()
    (place / "tiny.toml").write_text(
        TINY.replace("steps = 10", "steps = 1").replace("steps = 6", "steps = 1")
    )
    environment = {traced.FOLDER: str(place / "reached"), "ATOLL_RUNS": str(place / "runs")}
    done = commands.run("run", place / "tiny.toml", "--json", environment=environment, module="tests.traced")
    assert done.returncode == 0, done.stderr
    calls = [tuple(call) for path in (place / "reached").iterdir() for call in json.loads(path.read_text())]
    return {(file.split("/src/atoll/")[-1], name) for file, name in calls}


def test_the_thread_has_five_steps():
    assert [name for _, name in named()] == ["run", "expert", "velocity_loss", "Sampler.stream", "combine"]


@pytest.mark.slow
@pytest.mark.parametrize("step", named(), ids=lambda step: step[1])
def test_every_function_of_the_thread_is_reached_from_the_command_line(reached, step):
    path, name = step
    assert (path.removeprefix("src/atoll/"), name) in reached

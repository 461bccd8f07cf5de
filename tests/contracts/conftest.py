"""What contract suites need: a run of stages that take no time, known here and to every worker."""

import os

import pytest

from atoll.config import validate
from atoll.runs import Run, graph, write_json
from tests import commands
from tests.launch.makers import CUSTOMIZE, PLAY


@pytest.fixture(scope="session")
def playground(tmp_path_factory):
    """Where modules are found by a process that is to know these stages and no others."""
    folder = tmp_path_factory.mktemp("play")
    (folder / "sitecustomize.py").write_text(CUSTOMIZE)
    (folder / commands.PLAYS).touch()
    return os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])


@pytest.fixture
def play(tmp_path, monkeypatch, playground):
    """Give a run whose stages do what they are told: one(seed=1, two="fail")."""
    monkeypatch.setenv("PYTHONPATH", playground)
    monkeypatch.setattr(graph, "KINDS", PLAY)

    def make(*, seed=0, launch=None, **told):
        tree = {"name": "play", "seed": seed, "launch": launch or {}}
        tree["sample"] = {"prompts": [f"{name}={word}" for name, word in told.items()]}
        run = Run(tmp_path / "runs" / "play", validate(tree, "a test"))
        write_json(run.path / "resolved.json", run.config.model_dump(mode="json"))
        return run

    return make

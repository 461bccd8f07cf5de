"""What contract suites need: a run of stages that take no time, known here and to every worker."""

import os
from pathlib import Path

import pytest

from atoll.config import validate
from atoll.runs import Run, graph, write_json
from tests.launch.makers import CUSTOMIZE, PLAY


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Give a run whose stages do what they are told: one(seed=1, two="fail")."""
    (tmp_path / "customize").mkdir()
    (tmp_path / "customize" / "sitecustomize.py").write_text(CUSTOMIZE)
    root = Path(__file__).parents[2]
    paths = [str(tmp_path / "customize"), str(root), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setattr(graph, "KINDS", PLAY)

    def make(*, seed=0, launch=None, **told):
        tree = {"name": "play", "seed": seed, "launch": launch or {}}
        tree["sample"] = {"prompts": [f"{name}={word}" for name, word in told.items()]}
        run = Run(tmp_path / "runs" / "play", validate(tree, "a test"))
        write_json(run.path / "resolved.json", run.config.model_dump(mode="json"))
        return run

    return make

"""A run grows by what is new, and by nothing twice."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from atoll.cli import components  # noqa: F401 - it adds its commands to the app
from atoll.cli.options import app
from atoll.components import adding, growing
from atoll.data.parts import Parts
from atoll.errors import ConfigError, DataError, RunError
from atoll.evaluate import credit, held_out
from atoll.runs import Run, runs_folder
from atoll.sampling import opening
from tests.components.conftest import own_pictures

SMALL = ["expert.steps=20", "component.samples=0"]


@pytest.fixture
def arrived(finished, tmp_path):
    """A file of which the run has some samples already: 40 of its own and 32 that are new."""
    parts = Parts(finished.data)
    rows = parts.columns(parts.names[0], ["sample"])["sample"].to_pylist()[:40]
    old = np.stack([np.frombuffer(row, np.uint8).reshape(28, 28) for row in rows])
    np.savez(tmp_path / "arrived.npz", images=np.concatenate([old, own_pictures(seed=3, count=32)]))
    return tmp_path / "arrived.npz"


def test_a_part_is_made_of_what_is_new_and_added(finished, arrived):
    before = [finished.expert(k).digest for k in range(3)]
    settings = [word for pair in SMALL for word in ("--set", pair)]
    done = CliRunner().invoke(app, ["grow", str(finished.path), "--data", str(arrived), "--json", *settings])
    told = json.loads(done.stdout)
    assert (told["number"], told["rows"]) == (3, 32)
    assert Run.open(Path(told["made_in"])).data.contents.rows == 32
    assert [finished.expert(k).digest for k in range(3)] == before
    assert len(opening.open_run_model(finished).ensemble.experts) == 4
    held = held_out.samples(finished).batch
    assert torch.bincount(held.cluster).tolist() == [*finished.partition.contents.sizes, 32], (
        "it is valued too"
    )
    paid = credit.audit(finished.changed(["credit.bins=2", "credit.budget=0.001"]))["parts"]
    assert [part["rows"] for part in paid] == [4, 4, 4, 4]
    with pytest.raises(DataError, match="no sample that is not in the run already"):
        growing.grow(finished, str(arrived), SMALL)
    assert not (runs_folder() / f"{finished.config.name}-4-component").exists(), (
        "what is new is looked for again"
    )
    assert len(finished.members.added) == 1


def test_whoever_is_stopped_before_it_is_added_goes_on(finished, arrived, monkeypatch):
    def stopped(*arguments, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(adding, "add", stopped)
        with pytest.raises(KeyboardInterrupt):
            growing.grow(finished, str(arrived), SMALL)
    assert finished.members.added == ()
    with pytest.raises(ConfigError, match="begun with other data or settings"):
        growing.grow(finished, str(arrived), [*SMALL, "expert.lr=0.5"])
    assert growing.grow(finished, str(arrived), SMALL).member.number == 3


def test_a_part_that_is_refused_stays_and_that_is_said(finished, arrived, monkeypatch):
    def refused(*arguments, **more):
        raise ConfigError("it says what part 0 says")

    monkeypatch.setattr(adding, "add", refused)
    with pytest.raises(ConfigError, match=r"says; it stays in .*component, to be added then; delete"):
        growing.grow(finished, str(arrived), SMALL)
    assert (runs_folder() / f"{finished.config.name}-3-component" / "component" / "done.json").is_file()


def test_too_few_samples_are_refused_before_anything_is_trained(finished, tmp_path):
    np.savez(tmp_path / "few.npz", images=own_pictures(count=5))
    with pytest.raises(DataError, match="5 samples are too few"):
        growing.grow(finished, str(tmp_path / "few.npz"), SMALL)
    assert not (tmp_path / "runs" / "tiny-3-component").exists()


def test_a_run_without_samples_must_be_told_what_is_new(finished):
    (finished.path / "data").unlink()
    with pytest.raises(RunError, match="say what is: --data NEW"):
        growing.grow(finished)

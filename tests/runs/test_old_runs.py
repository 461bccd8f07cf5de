"""A run of an earlier program stays readable: its records are parsed, it is current, and it samples."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel

import atoll
from atoll.runs import Run, Stage, inputs, read_json, read_stamped
from atoll.runs.records import PartitionContents, RouterContents, SampledContents, StudentContents

FIXTURE = Path(__file__).parent / "fixtures" / "run-v1"
"""Made by `atoll run` when records had version 1; without samples at rest and states of training."""


@pytest.fixture
def old(tmp_path: Path) -> Run:
    return Run.open(Path(shutil.copytree(FIXTURE, tmp_path / "run-v1")))


def test_every_record_is_read_and_written_as_it_was():
    """A key that records have had since is added with its default; all that was there comes back."""
    found = sorted(FIXTURE.rglob("done.json"))
    assert len(found) >= 9
    for path in found:
        record = Stage(path.parent).record
        assert record.version == 1
        written, again = read_json(path), record.facts()
        remove_new(record.contents, again["contents"], written["contents"])
        assert again == written, path


def remove_new(value: BaseModel, again: dict[str, Any], written: dict[str, Any]) -> None:
    """Take away keys that were not there when it was written, after checking that they say nothing new."""
    for key in again.keys() - written.keys():
        assert getattr(value, key) == type(value).model_fields[key].default, key
        del again[key]
    for key in again:
        if isinstance(inner := getattr(value, key), BaseModel):
            remove_new(inner, again[key], written[key])


def test_files_are_those_of_their_records():
    """As far as they are here: pictures and samples at rest were left out."""
    stages = [Stage(path.parent) for path in sorted(FIXTURE.rglob("done.json"))]
    files = [
        (stage, name) for stage in stages for name in stage.record.files if (stage.path / name).is_file()
    ]
    assert {name for _, name in files} >= {
        "weights.safetensors",
        "config.json",
        "samples.json",
        "samples.npy",
    }
    for stage, name in files:
        stage.verify(name)
    size = sum(path.stat().st_size for path in FIXTURE.rglob("*") if path.is_file())
    assert size < 100_000, "a fixture is small"


def test_files_beside_records_have_a_version():
    for name in ("resolved.json", "samples/samples.json"):
        assert read_json(FIXTURE / name)["version"] == 1
        assert "version" not in read_stamped(FIXTURE / name)


def test_records_are_of_their_kind(old):
    assert isinstance(old.partition.contents, PartitionContents)
    assert sum(old.partition.contents.sizes) == old.data.contents.rows == 40
    assert [old.cluster(k).contents.cluster for k in range(2)] == [0, 1]
    assert isinstance(old.router.contents, RouterContents)
    assert isinstance(old.student.contents, StudentContents)
    assert isinstance(old.stage("samples").contents, SampledContents)
    assert [old.expert(k).contents.steps for k in range(2)] == [2, 2]


def test_what_was_trained_is_current(old):
    """What was left out of the recipe then means the same now, or the version of the defaults has risen."""
    for k in range(2):
        assert old.expert(k).current(inputs.expert_from(old, k))
    assert old.router.current(inputs.router_from(old))
    assert old.partition.current(inputs.partition_from(old))


@pytest.mark.parametrize("model", ["ensemble", "student"])
def test_it_samples(old, model):
    x_0 = atoll.load(old.path, model=model, precision="float32").sample(3, seed=1)
    assert x_0.shape == (3, 1, 4, 4)
    assert torch.isfinite(x_0).all()

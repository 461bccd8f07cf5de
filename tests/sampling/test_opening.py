import shutil

import numpy as np
import pytest
import torch

import atoll
from atoll import config
from atoll.data import hub
from atoll.errors import RunError
from atoll.models import checkpoint
from atoll.publish import export
from atoll.runs import Run, write_json
from atoll.runs.records import StudentContents
from atoll.sampling import opening, sample
from atoll.train import student
from tests import serving


def with_student(folder):
    """A served run with a student of random weights, whose record says what it is."""
    run = serving.served(folder, "class")
    network = {"width": 16, "depth": 1, "heads": 2, "patch": [4, 4], "steps": 3}
    tree = {**run.config.model_dump(mode="json"), "student": network}
    run = Run(run.path, config.validate(tree, "a test"))
    write_json(run.path / "resolved.json", run.config.model_dump(mode="json"))
    serving.network(run.student, "class", "expert", seed=5)
    blueprint = checkpoint.read_blueprint(run.student.path / checkpoint.CONFIG)
    contents = StudentContents(steps=3, rows=9, **student.alone(run, run.student, {}, blueprint))
    run.student.finish({}, [checkpoint.WEIGHTS, checkpoint.CONFIG], contents)
    return run


def test_every_kind_of_address_opens_in_the_same_way(tmp_path):
    run = with_student(tmp_path / "run")
    export.export(run, str(tmp_path / "exported"))
    drawn = atoll.load(run.path).sample(2)
    assert torch.equal(atoll.load(tmp_path / "exported").sample(2), drawn)
    assert torch.equal(atoll.load(str(tmp_path / "exported" / "ensemble")).sample(2), drawn)
    assert len(atoll.load(run.expert(1).path).ensemble.experts) == 1
    by_path, by_name = (atoll.load(run.student.path), atoll.load(run.path, model="student"))
    assert torch.equal(by_path.sample(2), by_name.sample(2))


def test_a_student_is_what_its_record_says_and_fakes_no_run(tmp_path):
    run = with_student(tmp_path / "run")
    assert sorted(path.name for path in run.student.path.iterdir()) == [
        "config.json",
        "done.json",
        "weights.safetensors",
    ]
    one = opening.open_run(run.student.path)
    assert (one.config.name, one.config.partition.clusters) == ("run-student", 1)
    assert one.partition.contents.sizes == (40,)
    assert one.data.path == run.data.path
    assert one.changed(["sample.num=7"]).expert(0).path == run.student.path
    written = sample.sample(one, sample.default_out(run.student.path), own=False)
    assert written["grid"] == str(run.student.path / "samples" / "grid.png")


def test_an_exported_student_tells_no_places_and_is_an_expert_by_itself(tmp_path):
    run = with_student(tmp_path / "run")
    export.export(opening.open_run(run.student.path), str(tmp_path / "out"))
    assert torch.equal(atoll.load(tmp_path / "out").sample(2), atoll.load(run.student.path).sample(2))
    assert "distilled from 2 experts" in (tmp_path / "out" / "README.md").read_text()
    told = [path.name for path in (tmp_path / "out").rglob("*.json") if "private" in path.read_text()]
    assert told == []
    alone = tmp_path / "out" / "ensemble" / "experts" / "00"
    assert opening.is_expert(alone)
    assert atoll.load(alone).sample(1, label=0).shape == (1, 3, 8, 8)


def test_one_door_for_whatever_has_an_address(tmp_path, monkeypatch):
    """A run, its student, an export, a lone expert: opened alike, and sampled alike."""
    run = with_student(tmp_path / "run")
    export.export(run, str(tmp_path / "out"))
    monkeypatch.setattr(hub, "download", lambda address: tmp_path / address.rpartition("/")[2])
    shapes: dict[str, tuple[int, ...]] = {}
    for address in (run.path, run.student.path, run.expert(0).path, tmp_path / "out", "hub:me/out"):
        opened = opening.open_address(address)
        written = sample.sample(opened, tmp_path / f"drawn-{len(shapes)}", num=2, label=[0])
        shapes[str(address)] = np.load(written["samples"], allow_pickle=False).shape
        assert torch.equal(opening.model_of(opened).sample(1), atoll.load(address).sample(1))
    assert set(shapes.values()) == {(2, 3, 8, 8)}


def test_what_a_folder_holds_is_read_and_not_guessed(tmp_path):
    run = with_student(tmp_path / "run")
    kinds = {
        stage.path.name: opening.is_expert(stage.path) for stage in (run.expert(0), run.router, run.student)
    }
    assert kinds == {"00": True, "router": False, "student": False}
    with pytest.raises(RunError, match="is not a run"):
        atoll.load(run.router.path)
    shutil.copytree(run.path, tmp_path / "foreign")
    write_json(tmp_path / "foreign" / "model_index.json", {"_class_name": "DiTPipeline"})
    assert not opening.is_export(tmp_path / "foreign")
    assert atoll.load(tmp_path / "foreign").sample(1).shape == (1, 3, 8, 8), "a run, whatever else lies there"

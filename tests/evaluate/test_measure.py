"""The judge on real data: its own samples are near, noise is far, and everything says on what it stands."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from atoll import config
from atoll.data import sources
from atoll.data.values import standardise
from atoll.errors import AtollError, DataError
from atoll.evaluate import classifier, evaluation, features, occupancy, reference
from atoll.evaluate.measure import Judge, table
from atoll.runs import Run


def settings(**changes):
    return config.EvaluateConfig(**{"num": 64, "reference": 1000, "bootstrap": 10, **changes})


@pytest.fixture
def judge(finished, tmp_path):
    return Judge(finished, settings(), tmp_path / "cache")


def test_real_samples_are_at_the_floor_and_noise_is_far(judge):
    """Other samples of the data than those compared with: as near as half of the data is to the other."""
    real = reference.draw(judge.run, 2000)
    near = judge.judge(standardise(real.stored[1000:], real.contents))
    far = judge.judge(torch.randn(1000, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    space = near["features"]["classifier"]
    assert space["frechet"]["value"] < 3 * space["floor"]["frechet"]
    assert space["frechet"]["low"] < space["frechet"]["value"] < space["frechet"]["high"]
    assert far["features"]["classifier"]["frechet"]["value"] > 20 * space["floor"]["frechet"]
    assert far["features"]["classifier"]["recall"]["value"] < 0.5 < space["recall"]["value"]
    assert space["distance"] == "Fréchet distance, classifier"
    assert near["classes"]["divergence"]["value"] < 0.02 < far["classes"]["divergence"]["value"]
    assert near["clusters"]["divergence"]["value"] < 0.02 < far["clusters"]["divergence"]["value"]
    assert sum(near["clusters"]["samples"]) == pytest.approx(1)
    json.dumps(near, allow_nan=False)


def test_pixels_are_features_too(finished, tmp_path):
    space = features.open_space("pixels", reference.draw(finished, 30), tmp_path)
    x = standardise(reference.draw(finished, 30).stored, finished.data.contents)
    assert torch.allclose(space.of(x), x.flatten(1), atol=1e-6)
    assert torch.allclose(space.reference, x.flatten(1), atol=1e-6)


def test_copies_of_training_samples_are_counted(judge):
    copied = judge.x_0[:40].clone()
    copied[:20] = judge.x_0[100:120] + 0.001
    copied[20:] = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(0)) * 2 - 1
    found = judge.judge(copied)["copies"]
    assert found["value"] == pytest.approx(0.5)
    assert 0 <= found["floor"] < 0.1


def test_clusters_of_real_samples_are_those_of_the_partition(judge):
    """The rule applied to samples as if a network had made them gives back the assignment."""
    from atoll.data.partition import read_assignment
    from atoll.data.parts import Parts

    parts = Parts(judge.run.data)
    assigned = {
        bytes(row["id"]): row["cluster"]
        for name in parts.names
        for row in read_assignment(judge.run.partition, name).to_pylist()
    }
    found = occupancy.clusters_of(judge.run, judge.x_0, judge.real.contents)
    sizes = torch.bincount(found, minlength=3) / len(found)
    expected = torch.bincount(torch.tensor(list(assigned.values())), minlength=3) / len(assigned)
    assert torch.allclose(sizes, expected, atol=0.05)


def test_the_classifier_is_trained_once_and_is_the_same_for_everybody(finished, tmp_path, monkeypatch):
    first = Judge(finished, settings(), tmp_path / "a")
    first.ready()
    calls = []
    monkeypatch.setattr(classifier, "_train", lambda *_: calls.append(1))
    again = Judge(finished, settings(), tmp_path / "a")
    assert torch.equal(first.spaces[0].reference, again.spaces[0].reference)
    assert calls == []
    monkeypatch.undo()
    monkeypatch.setattr(classifier, "STEPS", 60)
    elsewhere = Judge(finished, settings(), tmp_path / "b")
    assert torch.equal(first.spaces[0].reference, elsewhere.spaces[0].reference)
    assert first.spaces[0].about["accuracy"] > 0.5


def test_fewer_real_samples_are_the_first_of_more(finished):
    few, many = reference.draw(finished, 50), reference.draw(finished, 200)
    assert torch.equal(few.stored, many.stored[:50])
    assert few.labels == many.labels[:50]
    assert len(reference.draw(finished, 10**6)) == 5000


def test_drawn_samples_have_their_own_labels(finished):
    """Those of the source, found again by their values."""
    source = np.load(Path(sources.__file__).with_name("fashion-5k.npz"))
    names = {
        values.tobytes(): label for values, label in zip(source["images"], source["labels"], strict=True)
    }
    real = reference.draw(finished, 100)
    found = {
        (label, names[values.numpy().tobytes()])
        for values, label in zip(real.stored, real.labels, strict=True)
    }
    assert len(found) == len({label for label, _ in found}) == 10


def test_an_evaluation_of_a_run(finished):
    small = ["evaluate.num=40", "evaluate.reference=500", "evaluate.bootstrap=5", "sample.steps=3"]
    run = finished.changed([*small, 'evaluate.strategies=["ancestral", "top-1"]'])
    found = evaluation.evaluate(run)
    on_disk = json.loads((finished.path / "evaluation" / "evaluation.json").read_text())
    assert on_disk == json.loads(json.dumps(found))
    for name in ("ancestral", "top-1"):
        row = found["strategies"][name]
        assert row["strategy"] == name
        assert row["num"] == 40
        assert sum(row["makers"]) == 40
        assert row["experts_per_step"] == 1
        assert math.isfinite(row["features"]["classifier"]["frechet"]["value"])
    assert "floor" in table(list(found["strategies"].items()))


def test_a_run_beside_a_monolith_and_by_time(finished):
    """One of its experts stands for the monolith: samples of that expert are the very same pictures."""
    small = ["evaluate.num=20", "evaluate.reference=300", "evaluate.bootstrap=3", "sample.steps=3"]
    lone = finished.expert(1).path
    run = finished.changed([*small, f"evaluate.monolith={lone}", "evaluate.routing=20", "sample.experts=[1]"])
    found = evaluation.evaluate(run)
    alike = found["strategies"]["auto"]["monolith"]
    assert alike["matched"]["value"] == pytest.approx(1)
    assert alike["strangers"]["value"] < 0.99
    assert len(found["routing"]["times"]) == 10
    assert "calibration" in evaluation.routing_table(found["routing"])
    with pytest.raises(AtollError, match="is not a run of one cluster"):
        evaluation.evaluate(finished.changed([*small, f"evaluate.monolith={finished.path}"]))


def test_without_labels_pixels_serve(finished):
    real = reference.draw(finished, 100)
    nameless = reference.Real(
        real.stored, [None] * 100, real.captions, {**real.contents, "class_names": []}, "nameless"
    )
    assert features.default_names(nameless) == ("pixels",)
    with pytest.raises(DataError, match="need labels"):
        features.open_space("classifier", nameless, finished.path)


def test_inception_says_what_it_needs(finished, tmp_path):
    with pytest.raises(AtollError, match=r"atoll\[fid\]"):
        features.open_space("inception", reference.draw(finished, 20), tmp_path)


def test_a_run_without_data_cannot_be_judged(finished):
    (finished.path / "data").unlink()
    with pytest.raises(AtollError, match="compares with the run's own data"):
        Judge(finished, settings())


def test_settings_change_without_being_written(finished):
    before = (finished.path / "resolved.json").read_text()
    changed = finished.changed(["evaluate.num=77"])
    assert changed.config.evaluate.num == 77
    assert changed.config.expert == finished.config.expert
    assert (finished.path / "resolved.json").read_text() == before
    with pytest.raises(AtollError, match=r"evaluate\.num"):
        finished.changed(["evaluate.nun=77"])
    assert isinstance(changed, Run)

"""The judge on real data: its own samples are near, noise is far, and everything says on what it stands."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import config
from atoll.data import sources
from atoll.data.values import standardise
from atoll.errors import AtollError, DataError
from atoll.evaluate import classifier, distances, evaluation, features, occupancy, reference
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


def test_every_distance_has_its_floor(judge):
    """Of real samples against real ones, also for the shares of clusters and classes."""
    found = judge.judge(standardise(judge.real.stored[:200], judge.real.contents))
    floor = found["features"]["classifier"]["floor"]
    assert floor["num"] == 200
    halves = judge.spaces[0].reference[:500][:200], judge.spaces[0].reference[500:]
    assert floor["frechet"] == pytest.approx(distances.frechet(*halves))
    assert set(floor) == {"frechet", "kernel", "precision", "recall", "num"}
    for group in ("clusters", "classes"):
        # the very samples that are judged: their divergence is that floor itself
        assert found[group]["floor"] == pytest.approx(found[group]["divergence"]["value"])
        assert found[group]["floor"] > 0
    assert "floor" in found["copies"]


@pytest.mark.thorough
def test_a_second_set_is_judged_as_the_first_was(judge, monkeypatch):
    """What is the same for all sets is computed once, and nothing of one set stays for the next."""
    one, other = (torch.randn(50, 1, 28, 28, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    first = judge.judge(one)
    calls: list[Any] = []
    real = distances.Frechet.__init__

    def counted(self, *rest):
        calls.append(rest)
        real(self, *rest)

    monkeypatch.setattr(distances.Frechet, "__init__", counted)
    assert judge.judge(other) != first
    assert judge.judge(one) == first
    assert calls == []
    fresh = Judge(judge.run, judge.config, judge.folder)
    assert fresh.judge(one) == first
    assert calls


def test_only_inceptions_distance_is_called_fid(finished, tmp_path):
    real = reference.draw(finished, 20)
    named = {
        name: features.Space(name, torch.Tensor.float, real, tmp_path, {}).distance_name
        for name in ("inception", "classifier", "pixels", "facebook/dinov2-base", "google/inception")
    }
    assert named.pop("inception") == "FID"
    assert not any("FID" in said for said in named.values())
    assert all(name in said for name, said in named.items())


def test_a_vision_model_of_transformers_gives_features(finished, tmp_path):
    """A tiny DINOv2 of random weights from a folder: rows are its pooled output on the same pictures."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_ratio": 2}
    model = transformers.Dinov2Model(transformers.Dinov2Config(image_size=28, patch_size=14, **size)).eval()
    folder = tmp_path / "dino"
    model.save_pretrained(folder)
    transformers.BitImageProcessor(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
    ).save_pretrained(folder)
    judge = Judge(finished, settings(features=[str(folder)], reference=64), tmp_path / "cache")
    found = judge.judge(judge.x_0[:32])
    (space,) = judge.spaces
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pictures = judge.real.stored[:5].expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    with torch.no_grad():
        theirs = model(**processor(list(pictures), return_tensors="pt")).pooler_output
    assert torch.allclose(space.reference[:5], theirs, atol=1e-4)
    assert found["features"][str(folder)]["distance"] == f"Fréchet distance, {folder}"
    assert "classes" not in found


def test_pictures_of_prompts_are_looked_at(finished, tmp_path, arrays, clip):
    """LPIPS within prompts with that of the data beside it, and the CLIP score, each with its interval."""
    np.savez(tmp_path / "alexnet.npz", **arrays)
    how = settings(lpips=str(tmp_path), clip=str(clip), reference=40)
    judge = Judge(finished, how, tmp_path / "cache")
    alike = judge.x_0[:1].expand(20, -1, -1, -1)
    found = judge.looked_at(alike, {"prompt": ["a red shoe", "blue"] * 10})
    assert found["diversity"]["value"] == pytest.approx(0, abs=1e-6)
    assert found["diversity_of_data"]["value"] > 0.01
    assert found["diversity"]["num"] == 10
    assert found["clip_score"]["num"] == 20
    assert found["clip_score"]["low"] <= found["clip_score"]["value"] <= found["clip_score"]["high"]
    assert "clip_score" not in judge.looked_at(alike, {"label": [0, 1] * 10})
    plain = Judge(finished, settings(reference=40), tmp_path / "cache")
    assert plain.looked_at(alike, {"prompt": ["blue"] * 20}) == {}


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
    assert on_disk == {"version": 1, **json.loads(json.dumps(found))}
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
    said = evaluation.routing_table(found["routing"])
    assert "calibration" in said
    assert "20 real samples at each time" in said
    assert "likeness to the monolith" in table(list(found["strategies"].items()))
    for row in found["routing"]["times"]:
        for name, (low, high) in row["intervals"].items():
            assert low <= row[name] <= high, name
    with pytest.raises(AtollError, match="is not a run of one cluster"):
        evaluation.evaluate(finished.changed([*small, f"evaluate.monolith={finished.path}"]))


def test_without_labels_pixels_serve(finished):
    real = reference.draw(finished, 100)
    nameless = reference.Real(
        real.stored,
        [None] * 100,
        real.captions,
        real.contents.model_copy(update={"class_names": ()}),
        "nameless",
    )
    assert features.default_names(nameless) == ("pixels",)
    with pytest.raises(DataError, match="need labels"):
        features.open_space("classifier", nameless, finished.path)


def test_inception_says_what_it_needs(finished, tmp_path, monkeypatch):
    """As where nobody has installed it, whoever has."""
    for name in ("torch_fidelity", "torch_fidelity.feature_extractor_inceptionv3"):
        monkeypatch.setitem(sys.modules, name, None)
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

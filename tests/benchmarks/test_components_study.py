"""What the study of components trains on, and what it averages."""

import numpy as np
import pytest
import torch
from benchmarks.studies import components

from atoll import config, plan
from atoll.data.store import Reader, to_values
from atoll.models import checkpoint
from atoll.runs import inputs
from tests.beforehand import TINY


def test_a_class_is_left_out_and_comes_alone(tmp_path):
    images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1)
    np.savez(tmp_path / "set.npz", images=images, labels=np.array([0, 1, 2, 1, 0, 2]))
    files = components.subsets(tmp_path / "set.npz", 1, tmp_path)
    assert np.load(files["alone"])["images"].ravel().tolist() == [1, 3]
    assert np.load(files["without"])["images"].ravel().tolist() == [0, 2, 4, 5]
    assert files["whole"] == tmp_path / "set.npz"


def test_averaged_weights_are_the_mean_of_the_experts(finished, tmp_path):
    sampler = components.averaged(finished, tmp_path / "mean")
    experts = [checkpoint.read_tensors(finished.expert(k).path / checkpoint.WEIGHTS) for k in range(3)]
    found = dict(sampler.ensemble.experts[0].state_dict())
    name = next(iter(experts[0]))
    assert torch.allclose(found[name], sum(one[name] for one in experts) / 3)
    assert sampler.sample(1, steps=1).shape[0] == pytest.approx(1)


def test_the_rest_is_all_that_one_cluster_has_not(finished, tmp_path):
    about = finished.partition.contents
    stored = to_values(Reader([finished.cluster(k) for k in range(3)], 1, 0).first().x_0, about)
    np.savez(tmp_path / "set.npz", images=stored.round().byte().numpy()[:, 0])
    rest = np.load(components.rest_of(finished, tmp_path / "set.npz", 1, tmp_path))["images"]
    gone = {one.tobytes() for one in np.load(tmp_path / "set.npz")["images"]} - {x.tobytes() for x in rest}
    assert len(rest) == about.rows - about.sizes[1]
    assert len(gone) == about.sizes[1]


def test_the_rest_keeps_its_classes(finished, tmp_path):
    about = finished.partition.contents
    stored = to_values(Reader([finished.cluster(k) for k in range(3)], 1, 0).first().x_0, about)
    labels = np.arange(len(stored))
    images = stored.round().byte().numpy()[:, 0]
    np.savez(tmp_path / "set.npz", images=images, labels=labels, class_names=["a"])
    rest = np.load(components.rest_of(finished, tmp_path / "set.npz", 0, tmp_path))
    whole = np.load(tmp_path / "set.npz")["images"]
    assert np.array_equal(whole[rest["labels"]], rest["images"])
    assert rest["class_names"] == ["a"]


def test_what_is_trained_again_is_counted(finished):
    counts = components.costs(finished)
    config, clusters = finished.config, finished.config.partition.clusters
    forward, asked = plan.forward_flops(config)
    expert = 3 * forward * config.expert.steps * config.expert.batch
    router = 3 * asked * config.router.steps * config.router.batch
    assert counts["FLOPs, some samples of a split, routed in closed form"] == pytest.approx(expert)
    assert counts["FLOPs, a split dropped, router again"] == pytest.approx(router)
    assert counts["FLOPs, all but the start again"] == pytest.approx(clusters * expert + router)
    start = counts["FLOPs, all again"] - counts["FLOPs, all but the start again"]
    assert start == pytest.approx(
        0 if config.start is None else 3 * forward * config.start.steps * config.start.batch
    )


@pytest.mark.thorough
def test_a_run_is_trained_with_what_its_experts_begin_with(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "tiny.toml").write_text(TINY)
    run = components.trained(config.load(tmp_path / "tiny.toml", ["start.steps=2"]))
    assert run.start.done and run.router.done and all(run.expert(k).done for k in range(3))


@pytest.mark.thorough
def test_a_public_start_sees_none_of_the_samples(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "tiny.toml").write_text(TINY)
    public = config.load(tmp_path / "tiny.toml", ["start.steps=2", "name='public'"])
    begun = components.public_start(public)
    run = components.trained(components.on_public(config.load(tmp_path / "tiny.toml"), begun))
    assert run.config.start is None and not run.start.done
    assert not (tmp_path / "runs" / "public" / "experts").exists()
    known = {stage.digest for stage in (begun, inputs.beginning(run, 0))}
    assert len(known) == 1 and all(run.expert(k).done for k in range(3))

"""What the study of components trains on, and what it averages."""

import numpy as np
import pytest
import torch
from benchmarks.studies import components

from atoll import config
from atoll.data.store import Reader, to_values
from atoll.models import checkpoint
from tests.conftest import TINY


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


def test_what_is_trained_again_is_less_than_all(finished):
    shares = components.costs(finished)
    config = finished.config
    samples = [3 * config.expert.steps * config.expert.batch, config.expert.steps * config.expert.batch]
    assert 0 < shares["one expert again, routed in closed form, of all training"] < samples[1] / samples[0]


def test_a_run_is_trained_with_what_its_experts_begin_with(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "tiny.toml").write_text(TINY)
    run = components.trained(config.load(tmp_path / "tiny.toml", ["start.steps=2"]))
    assert run.start.done and run.router.done and all(run.expert(k).done for k in range(3))

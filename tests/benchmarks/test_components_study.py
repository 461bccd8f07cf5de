"""What the study of components trains on, and what it averages."""

import numpy as np
import pytest
import torch
from benchmarks.studies import components

from atoll.models import checkpoint


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

import json

import numpy as np
import pytest
import torch

import atoll
from atoll import sample
from atoll.errors import AtollError, CorruptError


def test_three_lines_to_a_picture(finished):
    ensemble = atoll.load(finished.path)
    images = ensemble.sample(num=4, strategy="top-1", steps=2, seed=0)
    assert images.shape == (4, 1, 28, 28)
    assert torch.equal(
        images, atoll.load(str(finished.path)).sample(num=4, strategy="top-1", steps=2, seed=0)
    )


def test_the_recipe_gives_the_defaults(finished):
    ensemble = atoll.load(finished.path)
    assert ensemble.defaults == finished.config.sample
    assert len(ensemble.sample()) == 6
    torch.testing.assert_close(ensemble.priors.sum(), torch.tensor(1.0))


def test_files_say_the_same_as_the_samples(finished, tmp_path):
    written = sample.sample(finished, tmp_path / "o", num=5, steps=2)
    arrays = np.load(tmp_path / "o" / "samples.npy", allow_pickle=False)
    expected = atoll.load(finished.path).trace(5, steps=2)
    np.testing.assert_array_equal(arrays, expected.x_0.numpy())
    assert written["experts"] == expected.expert.tolist()
    assert json.loads((tmp_path / "o" / "samples.json").read_text())["experts"] == expected.expert.tolist()


def test_a_missing_expert_is_named(finished):
    (finished.path / "experts").unlink()
    with pytest.raises(AtollError, match="experts/00 is not trained yet"):
        atoll.load(finished.path)


def test_a_missing_file_is_named(finished, tmp_path):
    import shutil

    source = (finished.path / "router").resolve()
    (finished.path / "router").unlink()
    shutil.copytree(source, finished.path / "router")
    (finished.path / "router" / "weights.safetensors").unlink()
    with pytest.raises(CorruptError, match=r"router/weights\.safetensors is missing"):
        atoll.load(finished.path)

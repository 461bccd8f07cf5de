import json
import shutil

import numpy as np
import pytest
import torch

import atoll
from atoll import sample
from atoll.errors import AtollError, CorruptError
from atoll.models.roster import Roster


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


def damaged(finished):
    """The same run with expert 1 damaged, in files of its own."""
    source = (finished.path / "experts").resolve()
    (finished.path / "experts").unlink()
    shutil.copytree(source, finished.path / "experts")
    path = finished.path / "experts" / "01" / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_serving_goes_on_with_the_rest_only_if_asked_to(finished, caplog):
    damaged(finished)
    with pytest.raises(CorruptError, match="experts/01"):
        atoll.load(finished.path)
    rest = sample.load_ensemble(finished.path, missing="skip")
    assert "serving without expert 1" in caplog.text
    traced = rest.trace(32, steps=1)
    assert set(traced.expert.tolist()) == {0, 2}
    named = sample.load_ensemble(finished.path, experts=[0, 2])
    assert torch.equal(named.sample(8, steps=2), rest.sample(8, steps=2))


def test_one_resident_expert_makes_the_same_pictures(finished):
    everyone = sample.load_ensemble(finished.path).sample(9, steps=3)
    lean = sample.load_ensemble(finished.path, resident=1)
    assert torch.equal(lean.sample(9, steps=3), everyone)
    assert isinstance(lean.experts, Roster)
    assert lean.experts.loads == len(set(lean.trace(9, steps=3).expert.tolist())), "each is loaded once"


def test_the_band_is_measured_when_the_router_is_trained(finished):
    band = finished.router.contents["band"]
    assert 0 <= band[0] <= band[1] <= 1
    ensemble = atoll.load(finished.path)
    assert [ensemble.band.low, ensemble.band.high] == band
    on, off = (ensemble.sample(6, strategy="full", steps=5, band=value) for value in (True, False))
    torch.testing.assert_close(on, off, atol=1e-4, rtol=0)

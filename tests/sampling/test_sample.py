import json
import shutil

import numpy as np
import pytest
import torch

import atoll
from atoll import config
from atoll.data import encode, partition
from atoll.data.text import TextEncoder
from atoll.errors import AtollError, CorruptError, Interrupted
from atoll.runs import Run
from atoll.sampling import opening, sample, writer
from atoll.sampling.roster import Roster
from atoll.sampling.sampler import Sampler
from atoll.train import jobs
from tests.serving import network, served


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
    torch.testing.assert_close(ensemble.ensemble.priors.sum(), torch.tensor(1.0))


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
    rest = opening.open_model(finished.path, missing="skip")
    assert "serving without expert 1" in caplog.text
    traced = rest.trace(32, steps=1)
    assert set(traced.expert.tolist()) == {0, 2}
    named = opening.open_model(finished.path, experts=[0, 2])
    assert torch.equal(named.sample(8, steps=2), rest.sample(8, steps=2))


def test_one_resident_expert_makes_the_same_pictures(finished):
    everyone = opening.open_model(finished.path).sample(9, steps=3)
    lean = opening.open_model(finished.path, resident=1)
    assert torch.equal(lean.sample(9, steps=3), everyone)
    assert isinstance(lean.ensemble.experts, Roster)
    assert lean.ensemble.experts.loads == len(set(lean.trace(9, steps=3).expert.tolist())), (
        "each is loaded once"
    )


def test_the_band_is_measured_when_the_router_is_trained(finished):
    band = finished.router.contents.band
    assert 0 <= band[0] <= band[1] <= 1
    ensemble = atoll.load(finished.path)
    assert [ensemble.ensemble.band.low, ensemble.ensemble.band.high] == list(band)
    on, off = (ensemble.sample(6, strategy="full", steps=5, band=value) for value in (True, False))
    torch.testing.assert_close(on, off, atol=1e-4, rtol=0)


def test_the_shares_of_a_class_come_from_the_partition(tmp_path):
    run = served(tmp_path / "run", "class")
    expected = torch.tensor([[0.75, 0.25], [1, 0], [0, 1], [0.75, 0.25]])  # boot, shirt, bag, and no class
    torch.testing.assert_close(atoll.load(run.path).ensemble.by_class, expected)
    assert atoll.load(served(tmp_path / "plain", "none").path).ensemble.by_class is None


def test_classes_by_name(tmp_path):
    run = served(tmp_path / "run", "class")
    written = sample.sample(run, tmp_path / "o", label=["bag", "boot"])
    assert written["class"] == ["bag", "boot", "bag", "boot", "bag"]
    by_number = atoll.load(run.path).sample(label=[2, 0])
    np.testing.assert_array_equal(
        np.load(tmp_path / "o" / "samples.npy", allow_pickle=False), by_number.numpy()
    )


def test_an_interrupted_request_keeps_what_is_finished(tmp_path):
    """Two experts with batches of two make four together; interrupted in the fifth, four are on disk."""
    run = served(tmp_path / "run")

    def interrupt(done, total):
        if done == 5:  # the last step of the last sample
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="after 4 of 5"):
        sample.sample(run, tmp_path / "o", progress=interrupt)
    left = sorted(path.name for path in (tmp_path / "o").iterdir())
    pictures = [f"sample-{index:05d}.png" for index in range(4)]
    assert left == ["grid.png", *pictures, "samples.json", "samples.npy"]
    whole = atoll.load(run.path).sample()
    np.testing.assert_array_equal(
        np.load(tmp_path / "o" / "samples.npy", allow_pickle=False), whole[:4].numpy()
    )


def test_interrupted_before_anything_is_finished(tmp_path):
    run = served(tmp_path / "run")

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="nothing was written"):
        sample.sample(run, tmp_path / "o", progress=interrupt)
    assert not (tmp_path / "o").exists()


@pytest.mark.filterwarnings("ignore")  # other people's
def test_prompts_reach_experts_and_router(tmp_path, encoder):
    run = served(tmp_path / "run", "text", encoder)
    ensemble = atoll.load(run.path)
    apple, cat = (ensemble.sample(2, prompt=words) for words in ("red apple", "green cat"))
    assert not torch.equal(apple, cat)
    both = ensemble.sample(4, prompt=["red apple", "green cat"])
    np.testing.assert_allclose(both[0], apple[0], atol=1e-5)
    np.testing.assert_allclose(both[1], cat[1], atol=1e-5)
    assert not torch.equal(ensemble.sample(2), apple)
    assert sorted(ensemble.vocabulary.known) == ["green cat", "red apple"]


@pytest.mark.filterwarnings("ignore")
def test_prompts_of_the_recipe_are_asked_when_nobody_says_one(tmp_path, encoder):
    run = served(tmp_path / "run", "text", encoder, prompts=["cat", "red apple"])
    written = sample.sample(run, tmp_path / "o", num=3)
    assert written["prompt"] == ["cat", "red apple", "cat"]
    said = atoll.load(run.path).sample(3, prompt=["cat", "red apple"])
    np.testing.assert_array_equal(np.load(tmp_path / "o" / "samples.npy", allow_pickle=False), said.numpy())


def test_a_text_encoder_that_is_not_there_is_named(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = served(tmp_path / "run", "text", tmp_path / "gone")
    with pytest.raises(AtollError, match="gone"):
        atoll.load(run.path).sample(1, prompt="cat")


@pytest.mark.filterwarnings("ignore")
def test_captions_reach_every_stage(tmp_path, encoder, monkeypatch):
    """From a file of captioned pictures, through all stages, to pictures by prompt."""
    captions = ["red apple", "green apple", "red cat", "green cat"] * 4
    pixels = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "captioned.npz", images=pixels, captions=np.array(captions))
    network = {"width": 16, "depth": 1, "heads": 2, "patch": (4, 4), "steps": 3, "batch": 4}
    tree = {
        "name": "captioned",
        "data": {"source": str(tmp_path / "captioned.npz")},
        "encode": {"text": str(encoder), "text_tokens": 6},
        "partition": {"clusters": 2},
        "condition": {"kind": "text"},
        "expert": network,
        "router": network,
        "sample": {"num": 4, "steps": 2},
    }
    run = Run.create(config.validate(tree, "test"))
    encode.prepare(run)
    partition.partition(run)
    for k in range(2):
        jobs.expert(run, k)
    jobs.router(run)
    asked = []

    class Counting(TextEncoder):
        def __call__(self, captions):
            asked.append(list(captions))
            return super().__call__(captions)

    monkeypatch.setattr(opening, "TextEncoder", Counting)
    written = sample.sample(run, tmp_path / "o", prompt=["red cat", "green apple"])
    assert written["prompt"] == ["red cat", "green apple"] * 2
    assert asked == [["red cat", "green apple"]]
    assert atoll.load(run.path).ensemble.kind == "text"


def test_a_request_has_a_folder_of_its_own_and_removes_nothing(tmp_path):
    run = served(tmp_path / "run")
    out = tmp_path / "pictures"
    sample.sample(run, out, own=True)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "sample-00099.png").write_bytes(b"somebody's")
    with pytest.raises(AtollError, match="is there already and not empty; give a new folder"):
        sample.sample(run, out, own=True, num=2)
    beside = sample.sample(run, out, own=False, num=2)
    assert beside["folder"] == str(tmp_path / "pictures-2")
    (out / "sample-00001.png").unlink()
    again = sample.sample(run, out, own=True)
    assert again["folder"] == str(out), "the very same request makes the very same"
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    assert after == {**before, "sample-00099.png": b"somebody's"}


def test_the_very_same_request_is_answered_by_what_is_there(tmp_path, monkeypatch):
    """So that the run's own samples, asked for again, stay a finished stage whatever happens meanwhile."""
    run = served(tmp_path / "run")
    first = sample.sample(run, tmp_path / "o", own=True, provenance=True)
    (tmp_path / "o" / "done.json").write_text("{}")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "o").iterdir()}
    monkeypatch.setattr(Sampler, "stream", None)
    again = sample.sample(run, tmp_path / "o", own=True, provenance=True)
    assert again == {**first, "repeated": True}
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "o").iterdir()} == before
    assert sample.place_sentence(first).startswith("Wrote ")
    assert sample.place_sentence(again).endswith(f"is here: {first['grid']}")


def test_another_network_is_another_request(tmp_path):
    run, other = served(tmp_path / "run"), tmp_path / "pictures"
    sample.sample(run, other, own=True)
    network(run.expert(0), "none", "expert", seed=40)
    with pytest.raises(AtollError, match="not empty"):
        sample.sample(run, other, own=True)


def test_a_billion_samples_are_refused_before_anything_is_made(tmp_path, monkeypatch):
    run = served(tmp_path / "run")
    monkeypatch.setattr(writer, "free_bytes", lambda folder: 60 * 10**9)
    with pytest.raises(AtollError, match=r"1,000,000,000 samples need about 4\.9 TB, and .* ask for fewer"):
        sample.sample(run, tmp_path / "o", num=10**9)
    assert not (tmp_path / "o").exists()

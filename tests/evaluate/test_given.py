"""Files of strangers: pictures and arrays as samples of a run, or one line that says what is wrong."""

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from atoll.errors import DataError
from atoll.evaluate import given, neighbours
from atoll.sampling import gallery, sample


def test_a_sample_that_was_written_is_read_back(finished, tmp_path):
    out = tmp_path / "out"
    sample.sample(finished, out, own=True, num=2)
    stored = torch.from_numpy(np.load(out / "samples.npy"))
    x_0 = given.read(finished, out / gallery.picture_name(1))
    assert x_0.shape == (1, 1, 28, 28)
    assert float((x_0[0] - stored[1].clamp(-1, 1)).abs().max()) <= 1 / 255 + 1e-6
    claims = given.claims(out / gallery.picture_name(1))
    assert claims["index"] == "1"
    assert int(claims["expert"]) in range(3)


def test_any_picture_is_brought_to_the_runs_size_and_channels(finished, tmp_path):
    path = tmp_path / "wide.jpg"
    Image.new("RGB", (300, 200), (255, 0, 0)).save(path)
    assert given.read(finished, path).shape == (1, 1, 28, 28)
    assert given.claims(path) == {}


def test_a_training_picture_is_the_training_sample(finished, tmp_path):
    from atoll.data.parts import Parts

    name = bytes(Parts(finished.data).ids(Parts(finished.data).names[0])[5]).hex()
    x_0 = neighbours.by_id(finished, [name])[name]
    path = tmp_path / "picture.png"
    gallery.picture(gallery.to_pixels(x_0, finished.partition.contents)[0]).save(path)
    assert torch.allclose(given.read(finished, path), x_0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 1, 28, 28)])
def test_an_array_is_taken_as_networks_see_samples(finished, tmp_path, shape):
    values = np.linspace(-1, 1, 784).reshape(shape)
    np.save(tmp_path / "one.npy", values)
    x_0 = given.read(finished, tmp_path / "one.npy")
    assert torch.allclose(x_0.flatten(), torch.linspace(-1, 1, 784), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("gone.png", None, "there is no file"),
        ("text.png", b"hello", "not a readable picture"),
        ("text.npy", b"hello", "neither a picture nor a .npy"),
        ("empty.npy", b"", "neither a picture nor a .npy"),
    ],
)
def test_what_is_no_sample_is_told_in_one_line(finished, tmp_path, name, contents, words):
    if contents is not None:
        (tmp_path / name).write_bytes(contents)
    with pytest.raises(DataError, match=words) as refused:
        given.read(finished, tmp_path / name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((2, 28, 28)), r"holds \(2, 28, 28\), but samples of .* are \(1, 28, 28\)"),
        (np.zeros(784), r"holds \(784,\)"),
        (np.full((1, 28, 28), np.nan), "not finite"),
        (np.array(["text"]), "neither a picture nor a .npy"),
    ],
)
def test_arrays_of_another_kind_are_refused(finished, tmp_path, values, words):
    np.save(tmp_path / "other.npy", values)
    with pytest.raises(DataError, match=words):
        given.read(finished, tmp_path / "other.npy")


def test_pictures_are_no_series(finished, tmp_path, monkeypatch):
    Image.new("L", (28, 28)).save(tmp_path / "one.png")
    series = finished.partition.contents.model_copy(update={"kind": "series"})
    monkeypatch.setattr(given, "contents_of", lambda run: series)
    with pytest.raises(DataError, match="no pictures but series"):
        given.read(finished, tmp_path / "one.png")


def test_claims_are_only_of_pictures_that_say_they_are_ours(tmp_path):
    about = PngInfo()
    about.add_text("expert", "3")
    about.add_text("Author", "somebody")
    Image.new("L", (4, 4)).save(tmp_path / "other.png", pnginfo=about)
    assert given.claims(tmp_path / "other.png") == {}
    about.add_text("Software", "Atoll")
    Image.new("L", (4, 4)).save(tmp_path / "ours.png", pnginfo=about)
    assert given.claims(tmp_path / "ours.png") == {"expert": "3"}


@drawn(st.binary(max_size=200))
def test_any_bytes_are_a_sample_or_one_line(tmp_path_factory, contents):
    path = tmp_path_factory.mktemp("given") / "any.npy"
    path.write_bytes(contents)
    try:
        assert given._array(path).dtype == torch.float32
    except DataError as refused:
        assert "\n" not in str(refused)

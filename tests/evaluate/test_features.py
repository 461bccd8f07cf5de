"""Features by name, with functions for networks: what is looked at, what is kept, what it is called."""

import pytest
import torch

from atoll.data.features import pixel_features
from atoll.errors import DataError
from atoll.evaluate import classifier, features
from atoll.evaluate.classifier import Classifier
from atoll.evaluate.features import BATCH, Space
from tests.evaluate.made import contents_of, pictures, real_of


def summed(values):
    """A number of each sample, to see which were looked at."""
    return values.double().flatten(1).sum(1, keepdim=True)


def test_samples_are_seen_as_bytes_in_parts():
    """As networks make them they are in [-1, 1]; what lies outside is cut off as it would be in a file."""
    sizes = []

    def see(values):
        sizes.append(len(values))
        assert values.dtype == torch.uint8
        return summed(values)

    x_0 = torch.full((BATCH + 7, 1, 2, 2), -1.0)
    x_0[3] = 9.0
    found = Space("sums", see, real_of(pictures(4)), None, {}).of(x_0)
    assert sizes == [BATCH, 7]
    assert found.dtype == torch.float32
    assert found[3].item() == 4 * 255
    assert found.sum().item() == 4 * 255


def test_the_data_are_looked_at_once_and_kept(tmp_path):
    real = real_of(pictures(BATCH + 3, (1, 4, 4)))
    calls = []

    def see(values):
        calls.append(len(values))
        return summed(values)

    space = Space("sums", see, real, tmp_path, {})
    expected = real.stored.double().sum((1, 2, 3))[:, None].float()
    assert torch.equal(space.reference, expected)
    assert space.reference is space.reference
    assert torch.equal(Space("sums", see, real, tmp_path, {}).reference, expected)
    assert calls == [BATCH, 3]


@pytest.mark.parametrize("different", ["name", "about", "data"])
def test_what_is_kept_is_not_taken_for_something_else(tmp_path, different):
    first = Space("sums", summed, real_of(pictures(5)), tmp_path, {"unit_length": False})
    name = "means" if different == "name" else "sums"
    about = {"unit_length": different == "about"}
    real = real_of(pictures(5), name="other" if different == "data" else "made")
    other = Space(name, lambda values: -summed(values), real, tmp_path, about)
    assert torch.equal(first.reference, -other.reference)
    assert len(list(tmp_path.glob("reference-*.safetensors"))) == 2


def test_samples_equal_to_the_data_have_their_features(tmp_path):
    """The way of the data and that of samples meet: what is compared was looked at in the same unit."""
    stored = pictures(6)
    real = real_of(stored)
    space = features.open_space("pixels", real, tmp_path)
    torch.testing.assert_close(space.of(stored.float() / 127.5 - 1), space.reference)
    assert float(space.reference.min()) >= -1
    assert float(space.reference.max()) <= 1


@pytest.mark.parametrize("mean", [0.0, 40.0])
def test_so_it_is_with_series_of_any_scale(tmp_path, mean):
    stored = torch.randn(6, 2, 10, generator=torch.Generator().manual_seed(0)) * 3 + mean
    real = real_of(stored, kind="series", dtype="float32", mean=mean, std=3.0)
    space = features.open_space("pixels", real, tmp_path)
    torch.testing.assert_close(space.of((stored - mean) / 3), space.reference, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(space.reference, pixel_features((stored - mean) / 3))


def test_only_inceptions_distance_is_called_fid():
    real = real_of(pictures(2))
    names = [Space(name, summed, real, None, {}).distance_name for name in ("inception", "pixels", "a/b")]
    assert names == ["FID", "Fréchet distance, pixels", "Fréchet distance, a/b"]


def test_bytes_are_seen_as_they_rest_and_other_units_as_bytes():
    stored = pictures(3)
    assert features.seen(stored, contents_of((1, 8, 8))) is stored
    unit = contents_of((1, 1, 3), dtype="float32", mean=0.5, std=0.5)
    values = torch.tensor([[[[0.0, 0.5, 1.0]]]])
    assert features.seen(values, unit).flatten().tolist() == [0, 128, 255]
    assert features.seen(values, unit).dtype == torch.uint8


def test_series_are_seen_in_their_own_values():
    stored = torch.tensor([[[1.5, -2.0]]], dtype=torch.float16)
    found = features.seen(stored, contents_of((1, 2), kind="series", dtype="float16", mean=1.0, std=2.0))
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == [1.5, -2.0]


def test_labels_decide_what_is_measured_on():
    assert features.default_names(real_of(pictures(2))) == ("pixels",)
    few, enough = (2 * classifier.BATCH + more for more in (-1, 0))
    for count, name in ((few, "pixels"), (enough, "classifier")):
        real = real_of(pictures(count + 1), [*["a"] * count, None], ("a",))
        assert features.default_names(real) == (name,)


def test_a_model_that_sees_pictures_is_not_shown_series(tmp_path):
    real = real_of(torch.zeros(4, 1, 9), kind="series", dtype="float32")
    with pytest.raises(DataError, match="sees pictures, not series"):
        features.open_space("owner/model", real, tmp_path)


@pytest.fixture
def ruler(monkeypatch):
    """A classifier of random weights in place of one that is trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Classifier((1, 8, 8), 4).eval()
    shown = []

    def trained(real, seen, folder):
        shown.append(seen)
        return network, 0.75

    monkeypatch.setattr(classifier, "trained", trained)
    return network, shown


def test_the_classifiers_space_is_its_last_features(tmp_path, ruler):
    network, shown = ruler
    real = real_of(pictures(5), ["a"] * 5, ("a",))
    space = features.open_space("classifier", real, tmp_path)
    assert space.about == {"accuracy": 0.75}
    assert shown[0] is real.stored
    with torch.no_grad():
        expected = network.features(real.stored.float() / 127.5 - 1)
    torch.testing.assert_close(space.reference, expected)


def test_classes_of_samples_are_what_the_classifier_says(tmp_path, ruler):
    network, _ = ruler
    stored = pictures(BATCH + 5)
    real = real_of(stored, ["a"] * len(stored), ("a",))
    found = features.predict(real, tmp_path, stored.float() / 127.5 - 1)
    with torch.no_grad():
        logits = network(stored.float() / 127.5 - 1)
    assert found.shape == (BATCH + 5,)
    chosen = logits.gather(1, found[:, None])[:, 0]
    torch.testing.assert_close(chosen, logits.max(1).values)

"""The ruler itself: what it sees, when it refuses, and that it is read from its file; nothing is trained."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import DataError
from atoll.evaluate import classifier
from atoll.evaluate.classifier import BATCH, FEATURES, SIDE, WIDTH, Classifier
from atoll.runs import read_json
from tests.evaluate.made import contents_of, pictures, real_of

NAMES = ("bag", "coat", "shoe")


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 17), (2, 40), (1, 3, 8, 8)])
def test_pictures_series_and_videos_have_as_many_features(shape):
    network = Classifier(shape, 5)
    x = torch.zeros(2, *shape)
    assert network.features(x).shape == (2, FEATURES)
    assert network(x).shape == (2, 5)


def test_logits_are_a_linear_map_of_the_features():
    network = Classifier((1, 12, 12), 4)
    x = torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    features = network.features(x)
    assert bool((features >= 0).all()), "they come out of a rectifier"
    torch.testing.assert_close(network(x), features @ network.head.weight.T + network.head.bias)


def test_large_samples_are_seen_by_the_means_of_their_areas():
    """Twice as large as it looks: the mean of each two by two is what it would see of the small one."""
    network = Classifier((1, 2 * SIDE, 2 * SIDE), 2)
    assert network.grid == (SIDE, SIDE)
    small = torch.randn(1, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    ripple = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).repeat(SIDE, SIDE)
    large = F.interpolate(small, scale_factor=2, mode="nearest") + ripple
    torch.testing.assert_close(network.features(large), network.features(small), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 25, 26), (1, 24, 28), (2, 27), (1, 28, 9, 28)])
def test_means_are_taken_over_seven_by_seven_fields_whether_that_is_work_or_not(shape):
    network = Classifier(shape, 2)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    first, _, second, _, _, _, layer, _ = network.body
    seen = F.relu(second(F.relu(first(x))))
    pooled = classifier.POOLS[len(shape) - 1](classifier.POOLED)(seen)
    assert torch.equal(network.features(x), F.relu(layer(pooled.flatten(1))))


def test_short_axes_stay_as_they_are():
    assert Classifier((3, 16, 3 * SIDE), 2).grid == (16, SIDE)


def test_the_parameters_are_those_of_the_layers_that_it_names():
    network = Classifier((1, 28, 28), 10)
    convolutions = (9 * 1 + 1) * WIDTH + (9 * WIDTH + 1) * 2 * WIDTH
    layers = (2 * WIDTH * 7 * 7 + 1) * FEATURES + (FEATURES + 1) * 10
    assert sum(each.numel() for each in network.parameters()) == convolutions + layers


def test_black_and_white_are_the_ends():
    values = torch.tensor([[[0, 51, 255]]], dtype=torch.uint8)
    standard = classifier.standard(values, contents_of((1, 3), kind="series"))
    assert standard.flatten().tolist() == pytest.approx([-1, -0.6, 1])


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=4), st.floats(0.1, 9))
def test_other_values_are_standardised_channel_by_channel(means, std):
    contents = contents_of((len(means), 4), kind="series", dtype="float32", std=std)
    contents = contents.model_copy(update={"mean": tuple(means)})
    wanted = torch.linspace(-2, 2, 4).expand(2, len(means), 4)
    values = wanted * std + torch.tensor(means).view(1, -1, 1)
    torch.testing.assert_close(classifier.standard(values, contents), wanted, atol=1e-3, rtol=1e-4)


def test_bytes_that_are_no_pictures_are_standardised_as_bytes():
    """Whatever the statistics say: the range of a byte is known."""
    odd = contents_of((1, 3), kind="series", mean=3.0, std=2.0)
    assert classifier.standard(torch.tensor([[[255]]], dtype=torch.uint8), odd).item() == 1


@pytest.fixture
def untrained(monkeypatch):
    """Calls of the training, which does nothing."""
    calls = []
    monkeypatch.setattr(classifier, "_train", lambda *given: calls.append(given))
    return calls


def labelled(num=3 * BATCH, unlabelled=0, name="made"):
    labels = [None] * unlabelled + [NAMES[index % 3] for index in range(num)]
    return real_of(pictures(num + unlabelled), labels, NAMES, name)


def test_without_labels_or_with_few_it_says_what_else_to_use(tmp_path, untrained):
    for real in (real_of(pictures(300)), labelled(2 * BATCH - 1), labelled(2 * BATCH - 1, 200)):
        with pytest.raises(DataError, match="need labels, at least 128 samples with one; use pixels"):
            classifier.trained(real, real.stored, tmp_path)
    assert untrained == []
    assert list(tmp_path.iterdir()) == []


def test_a_tenth_is_held_out_and_what_has_no_label_is_neither_learnt_nor_counted(tmp_path, untrained):
    real = labelled(200, unlabelled=50)
    classifier.trained(real, real.stored, tmp_path)
    ((_, _, labels, rows, _),) = untrained
    assert rows.tolist() == list(range(50 + 20, 250))
    assert bool((labels[rows] >= 0).all())
    (about,) = tmp_path.glob("*.json")
    assert read_json(about)["held_out"] == 20


def test_accuracy_is_the_share_of_held_out_samples_that_it_names_right(tmp_path, monkeypatch, untrained):
    real = labelled(200)
    wrong = real.classes[:20].clone()
    wrong[:5] = (wrong[:5] + 1) % 3
    monkeypatch.setattr(classifier, "_predictions", lambda network, seen, contents: wrong[: len(seen)])
    _, accuracy = classifier.trained(real, real.stored, tmp_path)
    assert accuracy == pytest.approx(15 / 20)


def test_a_second_call_reads_what_the_first_wrote(tmp_path, untrained):
    real = labelled()
    first, accuracy = classifier.trained(real, real.stored, tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)  # its beginning is its own, whatever was drawn before
        again, same = classifier.trained(real, real.stored, tmp_path)
        other, _ = classifier.trained(labelled(name="another"), real.stored, tmp_path)
    assert len(untrained) == 2, "once for each set of data"
    assert same == accuracy
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert torch.equal(weight, other.state_dict()[name])
    assert not again.training
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_weights_without_their_accuracy_are_made_again(tmp_path, untrained):
    """As after a crash between the two files."""
    real = labelled()
    classifier.trained(real, real.stored, tmp_path)
    next(tmp_path.glob("*.json")).unlink()
    classifier.trained(real, real.stored, tmp_path)
    assert len(untrained) == 2


def test_opening_it_leaves_the_draws_of_others_alone(tmp_path, untrained):
    real = labelled()
    before = torch.random.get_rng_state()
    classifier.trained(real, real.stored, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_predictions_are_the_same_in_parts_and_at_once():
    network = Classifier((1, 8, 8), 3)
    seen, contents = pictures(1203), contents_of((1, 8, 8))
    with torch.no_grad():
        network.head.bias.sub_(network(classifier.standard(seen, contents)).mean(0))  # none is a favourite
        logits = network(classifier.standard(seen, contents))
    found = classifier._predictions(network, seen, contents)
    assert len(set(found.tolist())) == 3
    torch.testing.assert_close(logits.gather(1, found[:, None])[:, 0], logits.max(1).values)

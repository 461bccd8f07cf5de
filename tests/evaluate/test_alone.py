"""What a part is asked for that draws alone."""

from types import SimpleNamespace

import pytest
import torch

from atoll.data import holdout
from atoll.data.store import Batch
from atoll.data.text import TextStates
from atoll.evaluate import alone


@pytest.fixture
def run(finished):
    return finished


class Noted:
    """A sampler that only notes what it is asked for."""

    def __init__(self, kind):
        self.ensemble = SimpleNamespace(kind=kind, classes=3)
        self.asked = {}

    def sample(self, num, **asked):
        self.asked = asked
        return torch.zeros(num, 1, 28, 28)


def test_a_part_is_asked_for_what_its_own_samples_are(run):
    sampler = Noted("class")
    found = alone.drawn(run, sampler, 1, 5, 7, steps=3)
    batch = alone.some_of(run.cluster(1), 5, run.config.seed + 1)
    assert (
        (batch.cluster == 1).all()
        and len(found.x_0) == 5
        and found.condition.tolist() == sampler.asked["label"]
    )
    assert sampler.asked["label"] == batch.label.clamp(min=0).tolist()
    assert (sampler.asked["strategy"], sampler.asked["cluster"]) == ("oracle", [1] * 5)
    assert (sampler.asked["seed"], sampler.asked["steps"]) == (7, 3)
    plain = Noted("none")
    assert alone.drawn(run, plain, 1, 5, 7).condition is None
    assert "label" not in plain.asked and "text" not in plain.asked


def test_captions_are_told_as_they_rest_and_come_again_where_there_are_fewer(run, monkeypatch):
    text = TextStates(torch.arange(6.0).view(2, 1, 3), torch.ones(2, 1).bool(), torch.arange(6.0).view(2, 3))
    batch = SimpleNamespace(x_0=torch.zeros(2, 1), label=None, text=text)
    monkeypatch.setattr(alone, "some_of", lambda *_: batch)
    sampler = Noted("text")
    told = alone.drawn(run, sampler, 0, 3, 0).condition
    assert told is sampler.asked["text"]
    assert sampler.asked["text"].pooled.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]


def test_of_a_part_whose_data_are_elsewhere_every_class_is_asked_for_in_turn(run, monkeypatch):
    monkeypatch.setattr(alone, "home_of", lambda *_: None)
    sampler = Noted("class")
    assert alone.drawn(run, sampler, 2, 4, 0).condition.tolist() == [0, 1, 2, 0]
    assert sampler.asked["label"] == [0, 1, 2, 0] and sampler.asked["cluster"] == [2] * 4
    assert alone.drawn(run, Noted("text"), 2, 4, 0).condition is None


def test_samples_that_nobody_trained_on_come_first(grown):
    run, private = grown(0.1)
    assert alone.home_of(run, 3).path == private.cluster(0).path, "of the part that the run has grown by here"
    held = holdout.read([private.cluster(0)], 5)
    assert torch.equal(alone.some_of(private.cluster(0), 5, 0).x_0, held.x_0)


def test_of_a_part_that_was_made_elsewhere_nobody_here_knows_the_data(grown):
    run, _ = grown(0, made_here=False)
    assert alone.home_of(run, 3) is None


def test_no_more_samples_are_taken_than_there_are(run):
    assert len(alone.some_of(run.cluster(0), 10**5, 0).x_0) == run.partition.contents.sizes[0]


def test_what_is_asked_for_is_what_rows_of_real_samples_are():
    x_0, classes = torch.zeros(4, 1, 2, 2), torch.tensor([2, -1, 0, 1])
    rows, states = torch.tensor([3, 0, 1]), torch.arange(4.0)[:, None]
    text = TextStates(states[:, None], torch.ones(4, 1).bool(), states)
    batch = Batch(x_0, classes, classes, text)
    assert alone.asking(batch, "class", rows) == {"label": [1, 2, 0]}
    assert alone.asking(batch, "text", rows)["text"].pooled[:, 0].tolist() == [3.0, 0.0, 1.0]
    assert alone.asking(batch, "none", rows) == {}

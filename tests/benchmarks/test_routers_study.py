"""Scores of routers against their definitions."""

import math

import pytest
import torch
from benchmarks.studies import routers


def test_scores_by_hand():
    """Three rows at 3 : 1, two of them right: one bin of confidence, from which accuracy is 1/12 away."""
    logits = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0], [0.0, math.log(3)]])
    found = routers.scores(logits, torch.tensor([0, 0, 0]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["cross-entropy"] == pytest.approx(-(2 * math.log(0.75) + math.log(0.25)) / 3)
    assert found["calibration error"] == pytest.approx(0.75 - 2 / 3)


def test_means_over_seeds():
    row = {"accuracy": 0.5}
    seeds = [{"distance, top-1": {"learnt": value}, "by time": {"learnt": [row]}} for value in (1.0, 3.0)]
    answer = routers.together(seeds)["learnt"]
    assert answer["distance, top-1"]["value"] == pytest.approx(2.0)
    assert answer["by time"] == [row]


def test_all_parts_are_routed_in_closed_form(finished):
    router = routers.closed_form(finished, calibrated=False)
    logits = router(torch.randn(2, 1, 28, 28), torch.full((2,), 0.5))
    assert torch.allclose(logits.exp().sum(1), torch.ones(2), atol=1e-5)
    assert logits.shape == (2, 3)

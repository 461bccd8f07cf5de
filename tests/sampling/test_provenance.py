import json

import numpy as np
import pytest
import torch
from PIL import Image

import atoll
from atoll.sampling import provenance, sample
from atoll.sampling.provenance import PALETTE, Provenance
from atoll.sampling.samples import Samples


def traced() -> Provenance:
    """Two steps: first shared 1 : 3 by experts 0 and 1, then expert 2 alone."""
    weights = torch.tensor([[[0.25, 0.75, 0.0]], [[0.0, 0.0, 1.0]]])
    samples = Samples(
        torch.zeros(1, 1, 2, 2),
        weights,
        torch.tensor([[0.5], [0.0]]),
        (1.0, 0.5),
        "full",
        None,
        torch.tensor([[0.5, 0.75, -0.25]]),
    )
    return Provenance.of(samples, 0)


def colour(k: int) -> object:
    return Image.new("RGB", (1, 1), PALETTE[k]).getpixel((0, 0))


def test_the_record_by_hand():
    found = provenance.record([7], [traced()])
    assert found["times"] == [1.0, 0.5]
    assert "not what an expert contributed" in found["shows"]
    assert found["samples"] == [
        {
            "index": 7,
            "shares": [0.125, 0.375, 0.5],
            "moved": [0.5, 0.75, -0.25],
            "switches": 1,
            "disagreement": [0.5, 0.0],
            "weights": [[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]],
        }
    ]


def test_the_picture_shares_out_each_column_among_the_experts():
    sheet = provenance.picture([traced()], np.full((1, 4, 4, 1), 90, np.uint8))
    left, right = provenance.GAP + 10, provenance.GAP + provenance.WAY - 10
    height = provenance.ROW - provenance.LINE
    first = [sheet.getpixel((left, provenance.GAP + y)) for y in range(height)]
    assert abs(first.count(colour(0)) / height - 0.25) < 0.02
    assert abs(first.count(colour(1)) / height - 0.75) < 0.02
    assert {sheet.getpixel((right, provenance.GAP + y)) for y in range(height)} == {colour(2)}
    line = provenance.GAP + provenance.ROW - 3
    assert sheet.getpixel((left, line)) == (0, 0, 0), "where the experts were furthest apart"
    assert sheet.getpixel((right, line)) == (255, 255, 255), "where one was asked"
    assert sheet.getpixel((sheet.width - 20, provenance.GAP + 20)) == (90, 90, 90), "the sample itself"


def test_experts_beyond_the_palette_are_drawn():
    many = len(PALETTE) + 2
    weights = torch.eye(many)[:, None]
    samples = Samples(torch.zeros(1, 1, 2, 2), weights, torch.zeros(many, 1), (1.0,) * many, "top-1", None)
    assert provenance.picture([Provenance.of(samples, 0)]).width == provenance.WAY + 2 * provenance.GAP


def test_it_is_written_on_request_and_says_what_the_ensemble_says(finished, tmp_path):
    plain = sample.sample(finished, tmp_path / "plain", num=3, steps=2)
    assert "provenance" not in plain
    assert not (tmp_path / "plain" / provenance.FILE).exists()
    asked = {"num": 3, "steps": 2, "strategy": "full"}
    written = sample.sample(finished, tmp_path / "o", provenance=True, **asked)
    found = json.loads((tmp_path / "o" / provenance.FILE).read_text())
    assert written["provenance"] == str(tmp_path / "o" / provenance.FILE)
    expected = atoll.load(finished.path).trace(**asked)
    weights = torch.tensor([one["weights"] for one in found["samples"]]).transpose(0, 1)
    torch.testing.assert_close(weights, expected.weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(weights.sum(2), torch.ones(2, 3), atol=1e-5, rtol=0)
    moved = provenance.moved(tmp_path / "o")
    assert sorted(moved) == [0, 1, 2] and [sum(one) for one in moved.values()] == pytest.approx(
        [1, 1, 1], abs=1e-5
    )
    with Image.open(tmp_path / "o" / provenance.PICTURE) as picture:
        assert picture.height == 3 * (provenance.ROW + provenance.GAP) + provenance.GAP
    sample.sample(finished, tmp_path / "o", **asked)
    assert provenance.moved(tmp_path / "o") == {}, "what was told of other samples is gone with them"

"""What the study of credit computes, on numbers that are known."""

import pytest
import torch
from benchmarks.studies import credit

from atoll.credit import shapley
from atoll.credit.shapley import Game
from atoll.evaluate.distances import Frechet
from tests.credit.test_shapley import game


def test_a_game_against_one_of_its_parts_is_the_game_against_that_base():
    weights, apart, base, target = game(4, 3)
    expected = Game.of(weights, apart - apart[3], base + apart[3], target)
    moved = credit.rebased(Game.of(weights, apart, base, target), 3)
    for name in ("along", "pairs", "base"):
        assert torch.allclose(getattr(moved, name), getattr(expected, name))


def test_the_distance_of_a_mixture_is_that_of_its_samples():
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4000, 5, generator=g) + torch.arange(3)[:, None, None]
    reference = torch.randn(3000, 5, generator=g)
    weights = torch.tensor([0.5, 0.25, 0.25])
    pooled = torch.cat([rows[0], rows[1, :2000], rows[2, :2000]])
    assert credit._mixed(Frechet(reference), rows, weights) == pytest.approx(
        Frechet(reference)(pooled), rel=0.05
    )


def test_leaving_out_the_part_that_is_far_from_the_data_helps():
    g = torch.Generator().manual_seed(1)
    rows = torch.randn(3, 500, 4, generator=g)
    rows[2] += 5
    _, lost = credit.changes(rows, torch.randn(500, 4, generator=g), torch.full((3,), 1 / 3))
    assert float(lost[2]) < 0 < float(lost[:2].min())


def test_the_game_without_a_base_gives_all_of_the_gain_away():
    weights, apart, base, target = game(4, 6)
    weights = weights / weights.sum(1, keepdim=True)
    played = Game.of(weights, apart, base, target)
    assert float(credit.enumerated(played).sum()) == pytest.approx(
        float(shapley.gain(played).mean()), rel=1e-6
    )


def test_a_sample_is_traced_as_a_file_would_hold_it():
    x_0 = torch.tensor([-1.5, -1.0, 0.001, 1.0])
    held = credit.as_files_hold(x_0)
    assert torch.equal((held + 1) * 127.5, ((held + 1) * 127.5).round().clamp(0, 255))
    assert float((held - x_0.clamp(-1, 1)).abs().max()) <= 1 / 255


def test_seeds_that_were_studied_before_are_read(tmp_path):
    (tmp_path / "some.json").write_text('{"seeds": [{"run": "a"}, {"run": "b"}]}')
    assert [one["run"] for one in credit._studied(tmp_path / "some.json", None)] == ["a", "b"]

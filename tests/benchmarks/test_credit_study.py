"""What the study of credit computes, on numbers that are known."""

import pytest
import torch
from benchmarks.studies import credit, sampled

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


def test_the_truth_is_of_samples_that_were_really_drawn_and_parts_alone_foretell_it():
    g = torch.Generator().manual_seed(1)
    centres = torch.tensor([[0.0], [0.5], [5.0]])
    alone = torch.randn(3, 400, 4, generator=g) + centres[:, None]
    reference = torch.randn(500, 4, generator=g)

    def mixed(numbers):
        chosen = torch.tensor(numbers)[torch.randint(len(numbers), (800,), generator=g)]
        return torch.randn(800, 4, generator=g) + centres[chosen], chosen

    sets = [mixed(numbers) for numbers in ([0, 1, 2], [1, 2], [0, 2], [0, 1])]
    real, who = (torch.stack(each) for each in zip(*sets, strict=True))
    priors = torch.full((3,), 1 / 3)
    truth = sampled.truth(real, who, priors, reference)
    assert float(truth.lost[2]) < 0 < float(truth.lost[:2].min())
    assert truth.whole == pytest.approx(Frechet(reference)(real[0]), rel=0.1), "but for luck of shares"
    lost, value = sampled.foretold(alone, reference, priors).values()
    assert float(((lost - truth.lost) / truth.lost).abs().max()) < 0.2
    assert value.argmin() == 2
    low, high = sampled.interval(truth.sure, lost)
    assert low <= high <= 1
    assert sampled.reliability(real, who, priors, reference) is not None


def test_luck_of_how_often_a_part_was_drawn_does_not_count():
    g = torch.Generator().manual_seed(3)
    rows, who = torch.randn(40, 3, generator=g).double(), torch.tensor([0] * 30 + [2] * 10)
    mean, covariance = sampled.weighed(rows, who, torch.tensor([0.2, 0.5, 0.3]))
    again = torch.cat([rows[:30].repeat(2, 1), rows[30:].repeat(9, 1)])  # 60 and 90: 0.4 and 0.6
    assert torch.allclose(mean, again.mean(0)) and torch.allclose(covariance, again.T.cov(correction=0))


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

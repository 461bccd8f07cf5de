import pytest
import torch
from benchmarks.studies import ground, students


def gaussian(mean: float, width: float, seed: int, num: int = 20_000) -> torch.Tensor:
    return mean + width * torch.randn(
        num, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def test_the_frechet_distance_of_gaussians_is_known():
    """Between N(0, 1) and N(m, s²) in d dimensions it is d m² + d (1 - s)²."""
    found = ground.frechet(gaussian(0.0, 1.0, 0), gaussian(2.0, 3.0, 1))
    assert found == pytest.approx(3 * 2**2 + 3 * (1 - 3) ** 2, rel=0.02)
    same = gaussian(0.0, 1.0, 0)
    assert ground.frechet(same, same) == pytest.approx(0.0, abs=1e-9)


def test_spread_is_the_mean_distance():
    assert ground.spread(torch.tensor([[0.0], [3.0], [6.0]])) == pytest.approx(4.0)


def test_students_cost_what_is_said_of_them():
    """A quarter of the samples is a third of the FLOPs, teacher included; three quarters are as much."""
    spent = students.flops(students.sizes(quick=False))
    assert spent["student at a third"] == pytest.approx(spent["monolith"] / 3)
    assert spent["student at as much"] == pytest.approx(spent["monolith"])
    assert spent["experts"] == pytest.approx(spent["monolith"]), "with their common start"

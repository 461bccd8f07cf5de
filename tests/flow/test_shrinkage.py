"""Shrinkage against an analytic mixture."""

import pytest
import torch

from atoll.flow import gaussian, path, shrinkage
from tests.analytic import grouped


def noisy(x_0, t, seed=0):
    noise = torch.randn(x_0.shape, generator=torch.Generator().manual_seed(seed), dtype=x_0.dtype)
    return path.point(x_0, noise, t), noise - x_0


def mixture(t):
    """Exact experts of an analytic mixture, where a Gaussian is not enough, and what they are asked about."""
    data = grouped(4, [30] * 4, dims=8, spread=0.4)
    x_0 = data.points.repeat(40, 1)
    times = torch.full((len(x_0),), t, dtype=torch.float64)
    x_t, target = noisy(x_0, times)
    base = gaussian.velocity(gaussian.fitted(data.points, 4), x_t, times)
    return data.velocity(x_t, times), base, target, times


@pytest.mark.parametrize("t", [0.3, 0.6, 0.75])
def test_an_exact_prediction_stays_as_it_is(t):
    exact, base, target, _ = mixture(t)
    assert (exact - base).square().mean() > 1e-3, "or there would be nothing to tell apart"
    assert shrinkage.share(target, exact, base) == 1.0


@pytest.mark.parametrize("t", [0.6, 0.9, 0.98])
def test_errors_that_the_conversion_multiplies_stay_bounded(t):
    """A noise prediction with an error of 0.1, read off: its velocity errs by 0.1 / (1 - t)."""
    exact, base, target, times = mixture(t)
    error = 0.1 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(3), dtype=exact.dtype)
    read = exact + error / (1 - t)
    part = shrinkage.share(target, read, base)
    apart = float((exact - base).square().mean())
    expected = apart / (apart + (0.1 / (1 - t)) ** 2)
    assert part == pytest.approx(expected, abs=0.05)
    better = shrinkage.shrunk(read, base, torch.full_like(times, part))
    away = float((better - exact).square().mean())
    assert away < 1.05 * min(apart, float((read - exact).square().mean())) + 1e-4


def test_a_prediction_that_is_the_gaussians_own_is_left_alone():
    x = torch.randn(4, 3)
    assert shrinkage.share(x, torch.zeros(4, 3), torch.zeros(4, 3)) == 1.0


def test_shares_lie_on_lines_between_times():
    times, shares = torch.tensor([0.5, 0.9, 1.0]), torch.tensor([1.0, 0.6, 0.0])
    t = torch.tensor([0.0, 0.5, 0.7, 0.95, 1.0])
    torch.testing.assert_close(shrinkage.between(t, times, shares), torch.tensor([1.0, 1.0, 0.8, 0.3, 0.0]))

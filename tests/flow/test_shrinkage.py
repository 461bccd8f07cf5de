"""Shrinkage against closed forms: a Gaussian's posterior by matrices, and an analytic mixture."""

import pytest
import torch

from atoll.flow import path, shrinkage
from tests.analytic import grouped


def noisy(x_0, t, seed=0):
    noise = torch.randn(x_0.shape, generator=torch.Generator().manual_seed(seed), dtype=x_0.dtype)
    return path.point(x_0, noise, t), noise - x_0


@pytest.mark.parametrize("t", [0.0, 0.02, 0.5, 0.97, 1.0])
def test_the_gaussian_velocity_is_that_of_its_covariance_matrix(t):
    """E[noise - x_0 | x_t] with the whole matrix, by solving."""
    torch.manual_seed(0)
    x_0 = torch.randn(40, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64) + 3
    known = shrinkage.gaussian(x_0, 3)
    covariance = known.rest * torch.eye(6, dtype=torch.float64)
    covariance += known.basis.T @ torch.diag(known.variances - known.rest) @ known.basis
    x_t = torch.randn(5, 6, dtype=torch.float64)
    away = x_t - (1 - t) * known.mean
    whole = (1 - t) ** 2 * covariance + t**2 * torch.eye(6, dtype=torch.float64)
    solved = torch.linalg.solve(whole, away.T)
    expected = (t * solved - (1 - t) * covariance @ solved).T - known.mean
    found = shrinkage.gaussian_velocity(known, x_t, torch.full((5,), t, dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_the_moments_are_those_of_the_samples():
    torch.manual_seed(1)
    x_0 = torch.randn(500, 2, 2, dtype=torch.float64) * torch.tensor([[3.0, 2.0], [1.0, 0.5]])
    known = shrinkage.gaussian(x_0, 2)
    flat = x_0.flatten(1)
    torch.testing.assert_close(known.mean, x_0.mean(0))
    torch.testing.assert_close(
        known.variances.sum() + 2 * known.rest, flat.var(0, correction=0).sum(), rtol=1e-8, atol=1e-8
    )
    assert known.variances[0] > known.variances[1] > known.rest


def mixture(t):
    """Exact experts of an analytic mixture, where a Gaussian is not enough, and what they are asked about."""
    data = grouped(4, [30] * 4, dims=8, spread=0.4)
    x_0 = data.points.repeat(40, 1)
    times = torch.full((len(x_0),), t, dtype=torch.float64)
    x_t, target = noisy(x_0, times)
    base = shrinkage.gaussian_velocity(shrinkage.gaussian(data.points, 4), x_t, times)
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

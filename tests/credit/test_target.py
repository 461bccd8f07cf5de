import torch

from atoll.credit import shapley, target
from tests import analytic
from tests.credit.test_shapley import common, experts_of, noisy

DATA = analytic.grouped(3, [6, 6, 6], dims=4, spread=0.5)


def everything(x_t: torch.Tensor) -> torch.Tensor:
    """Every point may be behind every row."""
    return torch.ones(len(x_t), len(DATA.points), dtype=torch.bool)


def test_it_is_the_velocity_of_the_points():
    x_t, t, _ = noisy(DATA, 200)
    found = target.expected_velocity(x_t, t, DATA.points, everything(x_t))
    assert torch.allclose(found, DATA.velocity(x_t, t), atol=1e-9)


def test_given_its_kind_it_is_the_velocity_of_the_points_of_that_kind():
    x_t, t, _ = noisy(DATA, 200)
    kind = torch.arange(200) % 3
    found = target.expected_velocity(x_t, t, DATA.points, kind[:, None] == DATA.cluster)
    for k in range(3):
        expected = DATA.expert(k, x_t, t)[kind == k]
        assert torch.allclose(found[kind == k], expected, atol=1e-9)


def test_values_stay_and_scatter_less():
    """Near the noise, where many points could have been the sample and the target scatters most."""
    x_t, t, plain = noisy(DATA, 40_000)
    x_t, t, plain = x_t[t > 0.6], t[t > 0.6], plain[t > 0.6]
    base = common(DATA, x_t, t)
    apart, weights = shapley.differences(experts_of(DATA, x_t, t), base), DATA.posterior(x_t, t)
    noisy_rows = shapley.shapley(shapley.Game.of(weights, apart, base, plain))
    smooth = target.expected_velocity(x_t, t, DATA.points, everything(x_t))
    rows = shapley.shapley(shapley.Game.of(weights, apart, base, smooth))
    error = (noisy_rows - rows).std(0) / len(rows) ** 0.5
    assert bool(((noisy_rows.mean(0) - rows.mean(0)).abs() < 4 * error).all())
    assert bool((rows.std(0) < 0.9 * noisy_rows.std(0)).all())


def test_a_gaussian_is_followed_by_its_own_velocity():
    """Against the exact velocity of one round component, and finite at both ends."""
    mean = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    data = analytic.GaussianMixture(mean, 0.7, torch.zeros(1, dtype=torch.long), 1)
    g = torch.Generator().manual_seed(0)
    x_t = torch.randn(50, 3, generator=g, dtype=torch.float64)
    t = 0.01 + 0.99 * torch.rand(50, generator=g, dtype=torch.float64)
    variance = torch.full((3,), 0.49, dtype=torch.float64)
    assert torch.allclose(target.gaussian_velocity(x_t, t, mean[0], variance), data.velocity(x_t, t))
    ends = target.gaussian_velocity(x_t[:2], torch.tensor([0.0, 1.0]).double(), mean[0], 0 * variance)
    assert bool(ends.isfinite().all())

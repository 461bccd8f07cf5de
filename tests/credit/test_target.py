import torch

from atoll.credit import shapley, target
from tests import analytic
from tests.credit.test_shapley import common, experts_of, noisy

DATA = analytic.grouped(3, [6, 6, 6], dims=4, spread=0.5)


def test_it_is_the_velocity_of_the_points():
    x_t, t, _ = noisy(DATA, 200)
    found = target.expected_velocity(x_t, t, DATA.points)
    assert torch.allclose(found, DATA.velocity(x_t, t), atol=1e-9)


def test_values_stay_and_scatter_less():
    """Near the noise, where many points could have been the sample and the target scatters most."""
    x_t, t, plain = noisy(DATA, 40_000)
    x_t, t, plain = x_t[t > 0.6], t[t > 0.6], plain[t > 0.6]
    base = common(DATA, x_t, t)
    apart, weights = shapley.differences(experts_of(DATA, x_t, t), base), DATA.posterior(x_t, t)
    noisy_rows = shapley.shapley(weights, apart, base, plain)
    rows = shapley.shapley(weights, apart, base, target.expected_velocity(x_t, t, DATA.points))
    error = (noisy_rows - rows).std(0) / len(rows) ** 0.5
    assert bool(((noisy_rows.mean(0) - rows.mean(0)).abs() < 4 * error).all())
    assert bool((rows.std(0) < 0.9 * noisy_rows.std(0)).all())

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.flow import path


def test_ends_are_data_and_noise():
    x_0, noise = torch.randn(2, 3, 4, 5)
    assert torch.equal(path.point(x_0, noise, torch.zeros(3)), x_0)
    assert torch.allclose(path.point(x_0, noise, torch.ones(3)), noise)


@given(st.floats(0.01, 0.99))
def test_velocity_is_the_finite_difference_of_the_path(t):
    g = torch.Generator().manual_seed(0)
    x_0, noise = torch.randn(2, 4, 2, 3, generator=g, dtype=torch.float64)
    h = 1e-6
    ahead, behind = (path.point(x_0, noise, torch.full((4,), t + d, dtype=torch.float64)) for d in (h, -h))
    torch.testing.assert_close((ahead - behind) / (2 * h), path.velocity(x_0, noise), atol=1e-8, rtol=0)


def test_every_sample_has_its_own_time():
    x_0, noise = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    x_t = path.point(x_0, noise, torch.tensor([0.25, 0.75]))
    assert x_t[0].unique().item() == 0.25
    assert x_t[1].unique().item() == 0.75


VARIANCE_PRESERVING = ["cosine", "linear-beta", "scaled-linear"]


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "indices"),
    [
        ("cosine", [6.3, 25.7, 62.5, 148.4, 250.9, 495.0, 739.2, 841.8, 928.0, 965.3, 992.5]),
        ("linear-beta", [2.4, 11.7, 29.9, 72.6, 124.6, 258.1, 426.4, 526.9, 658.2, 761.6, 952.0]),
        ("scaled-linear", [0.0, 2.2, 12.9, 59.7, 137.8, 353.9, 605.9, 744.2, 914.2, 999.0, 999.0]),
    ],
)
def test_the_time_map_of_the_published_schedules(name, indices):
    """Made with another program that interpolates α / (α + σ); the two differ by less than a twentieth."""
    t = double(0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
    found = path.PATHS[name].match(t) * path.INDICES
    torch.testing.assert_close(found, double(*indices), atol=0.11, rtol=0)


def test_the_schedules_are_the_published_ones():
    """ᾱ at a few indices by the formulas of their papers, multiplied out in numpy."""
    betas = {
        "linear-beta": np.linspace(1e-4, 0.02, 1000),
        "scaled-linear": np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2,
    }
    for name, beta in betas.items():
        index = np.array([0, 1, 250, 998, 999])
        alpha, sigma = path.PATHS[name].coefficients(torch.tensor(index / 1000))
        np.testing.assert_allclose(alpha.numpy() ** 2, np.cumprod(1 - beta)[index], rtol=1e-9)
        np.testing.assert_allclose(sigma.numpy() ** 2, 1 - np.cumprod(1 - beta)[index], rtol=1e-9)
    f = np.cos((np.array([1.0, 501.0, 999.0]) / 1000 + 0.008) / 1.008 * np.pi / 2) ** 2
    alpha, _ = path.PATHS["cosine"].coefficients(double(0.0, 0.5, 0.998))
    expected = f / np.cos(0.008 / 1.008 * np.pi / 2) ** 2
    np.testing.assert_allclose(alpha.numpy() ** 2, expected, rtol=1e-9)


@pytest.mark.parametrize("name", path.PATHS)
def test_matching_keeps_the_ratio_of_signal_to_noise_and_scaling_the_state(name):
    along = path.PATHS[name]
    low, high = along.reach
    t = torch.linspace(max(low, 1e-4), min(high, 1 - 1e-4), 301, dtype=torch.float64)
    alpha, sigma = along.coefficients(along.match(t))
    torch.testing.assert_close(sigma / (alpha + sigma), t, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(along.scale(t) * (1 - t), alpha, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(along.scale(t) * t, sigma, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", VARIANCE_PRESERVING)
def test_own_times_are_indices_from_first_to_last(name):
    along = path.PATHS[name]
    assert along.last == 0.999
    low, high = along.reach
    ends = along.match(double(0.0, low, high, 1.0))
    torch.testing.assert_close(ends, double(0.0, 0.0, 0.999, 0.999), atol=1e-9, rtol=0)
    time = torch.linspace(0, along.last, 777, dtype=torch.float64)
    alpha, sigma = along.coefficients(time)
    torch.testing.assert_close(alpha**2 + sigma**2, torch.ones_like(alpha))
    assert (alpha.diff() < 0).all()
    torch.testing.assert_close(along.match(sigma / (alpha + sigma)), time, atol=1e-9, rtol=0)


def test_the_reach_of_the_schedules():
    """The largest and smallest noise that each has seen, as a time of the linear path."""
    reaches = [path.PATHS[name].reach for name in VARIANCE_PRESERVING]
    np.testing.assert_allclose(reaches, [(0.006, 0.99995), (0.010, 0.9937), (0.028, 0.936)], atol=6e-4)


def test_the_data_is_predicted_from_any_point_of_a_path():
    x_0, noise = torch.randn(2, 3, 4, dtype=torch.float64)
    t = double(0.0, 0.3, 1.0)
    predicted = path.data_prediction(path.point(x_0, noise, t), path.velocity(x_0, noise), t)
    torch.testing.assert_close(predicted, x_0)

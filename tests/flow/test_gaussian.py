"""Two moments against closed forms: a posterior by matrices, a flow by small steps, all of a spectrum."""

import itertools

import pytest
import torch

from atoll.flow import gaussian, solver


@pytest.mark.parametrize("t", [0.0, 0.02, 0.5, 0.97, 1.0])
def test_the_gaussian_velocity_is_that_of_its_covariance_matrix(t):
    """E[noise - x_0 | x_t] with the whole matrix, by solving."""
    torch.manual_seed(0)
    x_0 = torch.randn(40, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64) + 3
    known = gaussian.fitted(x_0, 3)
    covariance = known.rest * torch.eye(6, dtype=torch.float64)
    covariance += known.basis.T @ torch.diag(known.variances - known.rest) @ known.basis
    x_t = torch.randn(5, 6, dtype=torch.float64)
    away = x_t - (1 - t) * known.mean
    whole = (1 - t) ** 2 * covariance + t**2 * torch.eye(6, dtype=torch.float64)
    solved = torch.linalg.solve(whole, away.T)
    expected = (t * solved - (1 - t) * covariance @ solved).T - known.mean
    found = gaussian.velocity(known, x_t, torch.full((5,), t, dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_the_moments_are_those_of_the_samples():
    torch.manual_seed(1)
    x_0 = torch.randn(500, 2, 2, dtype=torch.float64) * torch.tensor([[3.0, 2.0], [1.0, 0.5]])
    known = gaussian.fitted(x_0, 2)
    flat = x_0.flatten(1)
    torch.testing.assert_close(known.mean, x_0.mean(0))
    torch.testing.assert_close(
        known.variances.sum() + 2 * known.rest, flat.var(0, correction=0).sum(), rtol=1e-8, atol=1e-8
    )
    assert known.variances[0] > known.variances[1] > known.rest


def slanted(count, size, seed=0):
    """Samples whose directions differ in width, none along an axis."""
    source = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(size, size, generator=source, dtype=torch.float64))[0]
    widths = 3 * 0.8 ** torch.arange(size, dtype=torch.float64)
    return torch.randn(count, size, generator=source, dtype=torch.float64) * widths @ turn + 1


@pytest.mark.parametrize(("count", "size"), [(300, 24), (20, 60)])
def test_the_widest_directions_are_those_of_the_whole_matrix(count, size):
    x_0 = slanted(count, size)
    known = gaussian.fitted(x_0, 6)
    spectrum, directions = torch.linalg.eigh(x_0.T.cov(correction=0))
    torch.testing.assert_close(known.variances, spectrum.flip(0)[:6], rtol=1e-2, atol=0)
    torch.testing.assert_close(known.basis @ known.basis.T, torch.eye(6, dtype=torch.float64))
    agreement = (known.basis[:3] @ directions.flip(1)[:, :3]).abs().diagonal()
    assert (agreement > 0.99).all()


@pytest.mark.parametrize("t", [0.2, 0.6, 0.9])
def test_the_flow_is_where_small_steps_of_its_velocity_lead(t):
    """Heun's error falls with the square of a step: the closed form is the limit."""
    known = gaussian.fitted(slanted(200, 8), 3)
    noise = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def stepped(steps):
        x = noise
        grid = [1 - (1 - t) * n / steps for n in range(steps + 1)]
        for now, then in itertools.pairwise(grid):
            x = solver.heun(lambda x_t, times: gaussian.velocity(known, x_t, times.double()), x, now, then)
        return x

    exact = gaussian.flowed(known, noise, torch.full((5,), t, dtype=torch.float64))
    coarse, fine = ((stepped(steps) - exact).abs().max() for steps in (100, 400))
    assert fine < 1e-3
    assert fine < coarse / 8


def test_noise_flows_to_points_with_the_moments_of_noisy_samples():
    """Of (1-t) x_0 + t noise: mean (1-t) μ, covariance (1-t)² Σ + t², exactly if noise is white."""
    known = gaussian.fitted(slanted(200, 6), 5)
    white = torch.cat([torch.eye(6), -torch.eye(6)]).double() * 6**0.5
    found = gaussian.flowed(known, white, torch.full((12,), 0.6, dtype=torch.float64))
    whole = known.rest * torch.eye(6, dtype=torch.float64)
    whole += known.basis.T @ torch.diag(known.variances - known.rest) @ known.basis
    torch.testing.assert_close(found.mean(0), 0.4 * known.mean)
    torch.testing.assert_close(
        found.T.cov(correction=0), 0.16 * whole + 0.36 * torch.eye(6, dtype=torch.float64)
    )


@pytest.mark.parametrize("time", [0.0, 1.0])
def test_at_the_ends_it_is_noise_and_the_samples_own_gaussian(time):
    known = gaussian.fitted(slanted(200, 6), 2)
    noise = torch.randn(4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = gaussian.flowed(known, noise, torch.full((4,), time, dtype=torch.float64))
    if time == 1:
        torch.testing.assert_close(found, noise)
        return
    along = (found - known.mean) @ known.basis.T
    torch.testing.assert_close(along, known.variances.sqrt() * (noise @ known.basis.T))


@pytest.mark.parametrize(
    ("own", "closed", "expected"),
    [
        ([1, 1, 1, 1], [2, 2, 2, 2], 1.0),
        ([1, 1, 1, 1], [1, 1, 1, 1], 0.5),
        ([1, 1, 1, 1], [3, 2, 0.9, 0.8], 0.7),
        ([1, 1, 1, 1], [0.5, 2, 0.9, 0.8], 0.7),
        ([1, 1, 1, 1], [0.5, 0.5, 0.5, 1.1], 1.0),
    ],
)
def test_the_closed_form_serves_down_to_where_a_network_knows_more(own, closed, expected):
    """From the noise on without a gap: a lucky figure further down does not count."""
    values = (torch.tensor(each, dtype=torch.float64) for each in (own, closed))
    assert gaussian.known_from((0.5, 0.6, 0.7, 0.8), *values) == expected


def test_means_of_classes_are_drawn_in_by_what_a_one_way_layout_says():
    """Three classes of one value each, by hand: within 0.5, of means 12 with a spread of 10/3."""
    x_0 = torch.tensor([[0.0], [1.0], [4.0], [5.0], [8.0]], dtype=torch.float64)
    label = torch.tensor([0, 0, 1, 1, 2])
    found = gaussian.by_class(x_0, label, 4)
    means, mean, noise = [0.5, 4.5, 8.0], 3.6, (0.25 * 4) / 2
    between = 2 * (0.5 - 3.6) ** 2 + 2 * (4.5 - 3.6) ** 2 + (8 - 3.6) ** 2
    signal = (between - 2 * noise) / (5 - 9 / 5)
    shares = [n * signal / (n * signal + noise) for n in (2, 2, 1)]
    expected = [share * (own - mean) for share, own in zip(shares, means, strict=True)]
    torch.testing.assert_close(found[:, 0].tolist(), [*expected, 0.0, 0.0])


def test_classes_that_differ_by_chance_alone_share_one_mean():
    source = torch.Generator().manual_seed(0)
    alike = torch.randn(40, 300, generator=source)
    label = torch.arange(40) % 20
    apart = alike + 3 * torch.randn(20, 300, generator=source)[label]
    by_chance, by_class = gaussian.by_class(alike, label, 20), gaussian.by_class(apart, label, 20)
    assert by_chance.square().mean() < 0.02, "means of two samples have a variance of 0.5"
    own = torch.stack([apart[label == k].mean(0) for k in range(20)]) - apart.mean(0)
    torch.testing.assert_close(by_class[:20], own, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("label", [[-1] * 4, [0] * 4, [0, 1, 2, 3], [-1, 0, 0, 1]], ids=str)
def test_samples_of_no_class_or_one_class_or_one_of_each_are_no_trouble(label):
    x_0 = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    found = gaussian.by_class(x_0, torch.tensor(label), 5)
    assert found.shape == (6, 2, 3)
    assert found.isfinite().all()
    assert not found[-1].any(), "who is told nothing belongs to all"
    if len(set(label)) == 1:
        torch.testing.assert_close(found, torch.zeros_like(found))

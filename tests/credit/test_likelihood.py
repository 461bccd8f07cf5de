import math

import pytest
import torch

from atoll.credit import likelihood
from tests import analytic


def mixture() -> analytic.GaussianMixture:
    means = torch.tensor([[1.5, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.5, 1.0]], dtype=torch.float64)
    return analytic.GaussianMixture(means, 0.5, torch.arange(3), 3)


def velocity_errors(
    data: analytic.GaussianMixture, x_0: torch.Tensor, t: torch.Tensor, repeats: int
) -> torch.Tensor:
    """(times, num, experts): squared errors of each cluster's exact velocity, a mean over noises."""
    g = torch.Generator().manual_seed(0)
    rows = []
    for now in t:
        noise = torch.randn(repeats, *x_0.shape, generator=g, dtype=torch.float64)
        x_t = ((1 - now) * x_0 + now * noise).flatten(0, 1)
        alpha, sigma = (1 - now).expand(len(x_t)), now.expand(len(x_t))
        means = [data.mean(x_t, alpha, sigma, k) for k in range(3)]
        v = torch.stack([(x_t - mean) / now for mean in means])
        errors = (v - (noise - x_0).flatten(0, 1)).square().sum(2)
        rows.append(errors.view(3, repeats, -1).mean(1).T)
    return torch.stack(rows)


def test_differences_are_those_of_the_known_densities():
    data = mixture()
    x_0, cluster = data.draw(40, seed=3)
    t = likelihood.times(400, torch.full((400,), 0.5, dtype=torch.float64))
    nll = likelihood.negative_log_likelihood(velocity_errors(data, x_0, t, 64), t)
    exact = (x_0[:, None] - data.means).square().sum(2) / (2 * data.width**2)
    gap, truth = nll - nll[:, :1], exact - exact[:, :1]
    assert float((gap - truth).abs().max()) < 0.05 * float(truth.abs().max())
    chosen = likelihood.posterior(nll, data.priors).argmax(1)
    assert (chosen == cluster).double().mean() > 0.9


def test_logits_of_times_are_spread_evenly():
    t = likelihood.times(6, torch.full((6,), 0.5))
    assert torch.allclose(t.logit(), torch.tensor([-5.0, -3.0, -1.0, 1.0, 3.0, 5.0]), atol=1e-4)


def test_priors_and_temperature():
    nll = torch.tensor([[0.0, math.log(4)]])
    assert torch.allclose(likelihood.posterior(nll, [0.5, 0.5]).float(), torch.tensor([[0.8, 0.2]]))
    assert torch.allclose(likelihood.posterior(nll, [0.2, 0.8]).float(), torch.tensor([[0.5, 0.5]]))
    assert torch.allclose(likelihood.posterior(nll, [0.5, 0.5], 2.0).float(), torch.tensor([[2 / 3, 1 / 3]]))


def test_bits_per_value():
    found = likelihood.bits_per_value(torch.tensor([[8 * math.log(2), 0.0]]), 4)
    assert torch.allclose(found, torch.tensor([[2.0, 0.0]]))


def known(num: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exact likelihoods of samples of three makers, each expert worse by a constant of its own."""
    data = analytic.GaussianMixture(mixture().means, 0.9, torch.arange(3), 3)
    x_0, maker = data.draw(num, seed=seed)
    exact = (x_0[:, None] - data.means).square().sum(2) / (2 * data.width**2)
    return exact, maker, torch.tensor([0.0, 25.0, -1.0], dtype=torch.float64)


def test_an_expert_that_is_worse_at_everything_is_named_all_the_same():
    exact, maker, worse = known(4000)
    best = likelihood.posterior(exact, [1, 1, 1]).argmax(1)
    assert not (likelihood.posterior(exact + worse, [1, 1, 1]).argmax(1) == 1).any()
    fitted = likelihood.calibrated(exact[:2000] + 3 * worse, maker[:2000])
    assert float(fitted.offsets.sum()) == pytest.approx(0, abs=1e-6)
    assert torch.allclose(fitted.offsets, 3 * (worse - worse.mean()), atol=0.3)
    assert fitted.temperature == pytest.approx(1.0, abs=0.1), "differences are in nats, as they should be"
    found = likelihood.posterior(fitted.applied(exact + 3 * worse), [1, 1, 1]).argmax(1)
    assert (found == best).double().mean() > 0.97


def test_a_calibration_is_where_nothing_else_fits_better():
    """Its slope is zero: each expert is expected as often as it is the maker, by the smoothed targets."""
    exact, maker, worse = known(60)
    fitted = likelihood.calibrated(exact + worse, maker)
    p = likelihood.posterior(fitted.applied(exact + worse), [1, 1, 1], fitted.temperature)
    counts = torch.bincount(maker).double()
    weight = 1 / counts[maker]
    anybody = 1 / (3 * (counts + 1))
    for k in range(3):
        wanted = anybody.sum() + counts[k] / (counts[k] + 1)  # of everybody's samples, and of its own
        assert float((weight * p[:, k]).sum()) == pytest.approx(float(wanted), abs=1e-6)


def test_makers_that_are_told_apart_always_leave_it_unsure():
    nll = torch.tensor([[0.0, 900.0], [10.0, 800.0], [950.0, 0.0], [700.0, 5.0]])
    fitted = likelihood.calibrated(nll, torch.tensor([0, 0, 1, 1]))
    p = likelihood.posterior(fitted.applied(nll), [0.5, 0.5], fitted.temperature)
    assert p.argmax(1).tolist() == [0, 0, 1, 1]
    assert 0.75 < float(p.max()) < 0.95, "two samples of each are no proof of more than (2 + 1/2) / (2 + 1)"


def test_experts_that_are_gone_or_have_no_samples_are_left_as_they_are():
    exact, maker, worse = known(300)
    gone = torch.full((300, 1), torch.inf, dtype=torch.float64)
    whole = likelihood.calibrated(exact + worse, maker)
    wider = likelihood.calibrated(torch.cat([exact + worse, gone, exact[:, :1]], 1), maker)
    assert torch.allclose(wider.offsets[:3], whole.offsets) and wider.offsets[3:].tolist() == [0.0, 0.0]
    lone = likelihood.calibrated(exact, torch.zeros(300, dtype=torch.long))
    assert lone.offsets.tolist() == [0.0] * 3 and lone.temperature == 1.0
    against = likelihood.calibrated(-10 * exact, maker)
    assert against.offsets.tolist() == [0.0] * 3, "likelihoods that say the opposite say nothing"

import math

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

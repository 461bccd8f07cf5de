import math

import pytest
import torch

from atoll.flow import mixture, path, prototypes
from tests.analytic import mixture_of


def test_density_is_that_of_the_noisy_gaussian():
    """Against torch's own Gaussian, up to the constant that all prototypes share."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, generator=g, dtype=torch.float64)
    means, variances = (
        torch.randn(4, 3, generator=g, dtype=torch.float64),
        torch.tensor([0.1, 1.0, 2.0, 0.5]).double(),
    )
    t = torch.tensor([0.1, 0.3, 0.5, 0.9, 1.0], dtype=torch.float64)
    expected = torch.stack(
        [
            torch.distributions.Normal((1 - t)[:, None] * mean, ((1 - t) ** 2 * v + t**2).sqrt()[:, None])
            .log_prob(x)
            .sum(1)
            for mean, v in zip(means, variances, strict=True)
        ],
        dim=1,
    )
    got = prototypes.log_density(x, t, means, variances)
    assert torch.allclose(got - 1.5 * math.log(2 * math.pi), expected, atol=1e-10)


def test_a_mixture_of_round_gaussians_is_routed_exactly():
    """The prototypes are the data: the posterior is Bayes' at every time."""
    data = mixture_of(3, 4, 6)
    x_0, _ = data.draw(64)
    for t in (0.05, 0.3, 0.7, 0.99):
        times = torch.full((64,), t, dtype=torch.float64)
        noise = torch.randn(64, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        x_t = path.point(x_0, noise, times)
        joint = prototypes.log_density(x_t, times, data.means, torch.full((12,), data.width**2).double())
        routed = prototypes.by_owner(joint, data.cluster, 3).softmax(1)
        assert torch.allclose(routed, data.posterior(x_t, 1 - times, times), atol=1e-10)


def test_who_has_no_prototypes_has_no_weight():
    sums = prototypes.by_owner(torch.zeros(2, 3), torch.tensor([0, 2, 2]), 4)
    assert torch.equal(sums[0], torch.tensor([0.0, -torch.inf, math.log(2), -torch.inf]))


def cross_entropy(logits, owner, weights, beta):
    return float((-(beta * logits).log_softmax(1).gather(1, owner[:, None])[:, 0] * weights).sum())


@pytest.mark.parametrize("scale", [0.2, 1.0, 25.0])
def test_the_temperature_is_the_best_of_a_grid(scale):
    g = torch.Generator().manual_seed(3)
    truth = torch.randn(4000, 4, generator=g, dtype=torch.float64)
    owner = torch.multinomial(truth.softmax(1), 1, generator=g)[:, 0]
    weights = torch.rand(4000, generator=g, dtype=torch.float64)
    beta = prototypes.inverse_temperature(scale * truth, owner, weights)
    grid = [math.exp(step / 50) for step in range(-300, 150)]
    best = min(grid, key=lambda one: cross_entropy(scale * truth, owner, weights, one))
    assert beta == pytest.approx(best, rel=0.03)
    assert beta * scale == pytest.approx(1.0, rel=0.1)


def test_owners_that_cannot_be_do_not_break_the_temperature():
    logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]])
    beta = prototypes.inverse_temperature(logits, torch.tensor([0, 1]), torch.ones(2))
    assert 0 < beta <= prototypes.HOTTEST * (1 + 1e-12)


def test_new_parts_take_from_the_known_without_moving_them():
    g = torch.Generator().manual_seed(0)
    known, groups = torch.randn(7, 3, generator=g).double(), torch.randn(7, 3, generator=g).double()
    p = prototypes.grown(known, groups).exp()
    assert torch.allclose(p.sum(1), torch.ones(7).double())
    assert torch.allclose(p[:, :3] / p[:, :3].sum(1, keepdim=True), known.softmax(1))
    assert torch.allclose(p[:, 3:], groups.softmax(1)[:, 1:])


def test_the_chain_of_groups_is_bayes_where_both_know_the_truth():
    data = mixture_of(4, 2, 3, seed=2)
    t = torch.full((32,), 0.4, dtype=torch.float64)
    x_t = torch.randn(32, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    exact = data.posterior(x_t, 1 - t, t)
    groups = torch.stack([exact[:, :3].sum(1), exact[:, 3]], dim=1).log()
    assert torch.allclose(prototypes.grown(exact[:, :3].log(), groups).exp(), exact, atol=1e-12)


def test_moments_are_means_and_variances_of_groups():
    g = torch.Generator().manual_seed(0)
    x, group = torch.randn(50, 4, generator=g), torch.arange(50) % 3
    means, variances, sizes = prototypes.moments(x, group, 3)
    for k in range(3):
        assert torch.allclose(means[k], x[group == k].mean(0), atol=1e-6)
        assert float(variances[k]) == pytest.approx(
            float(x[group == k].var(0, correction=0).mean()), rel=1e-5
        )
    assert sizes.tolist() == [17, 17, 16]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (2.0, 1e-6), (10.0, 1e-3)])
def test_noise_spends_the_budget_and_no_more(epsilon, delta):
    """The budget that the noise costs, added up the other way round."""
    sigma = prototypes.noise_for(epsilon, delta, releases=3)
    rho = 3 / (2 * sigma**2)
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) == pytest.approx(epsilon)
    assert prototypes.noise_for(epsilon / 2, delta, 3) > sigma


def test_private_moments_are_near_for_many_samples_and_noisy_for_few():
    g = torch.Generator().manual_seed(0)
    x = (0.3 * torch.randn(200_000, 4, generator=g) + 0.2).clamp(-1, 1)
    group = torch.zeros(len(x), dtype=torch.long)
    means, variances, sizes = prototypes.private_moments(x, group, 1, (1.0, 1e-6), g)
    exact = prototypes.moments(x, group, 1)
    assert torch.allclose(means, exact[0], atol=1e-2)
    assert torch.allclose(variances, exact[1], atol=1e-2)
    assert float(sizes[0]) == pytest.approx(len(x), rel=1e-2)
    few = prototypes.private_moments(x[:5], group[:5], 1, (1.0, 1e-6), g)
    assert not torch.allclose(few[0], x[:5].mean(0)[None], atol=1e-2)
    assert float(few[1]) > 0


def test_one_sample_moves_what_is_released_by_no_more_than_is_hidden():
    """Sensitivities that the noise is scaled by, with the longest sample that there can be."""
    g = torch.Generator().manual_seed(0)
    x, dims = torch.randn(20, 6, generator=g).clamp(-1, 1), 6
    longest = torch.full((1, dims), 100.0)  # is cut to the length of a sample
    group = torch.zeros(21, dtype=torch.long)
    both = torch.cat([x, longest * math.sqrt(dims) / longest.norm()])
    sums = [prototypes.moments(part, group[: len(part)], 1)[0] * len(part) for part in (x, both)]
    assert float((sums[1] - sums[0]).norm()) <= math.sqrt(dims) + 1e-4


def test_protection_is_the_mean_of_the_halves():
    g = torch.Generator().manual_seed(0)
    posterior = torch.rand(6, 5, generator=g).double()
    posterior = posterior / posterior.sum(1, keepdim=True)
    first = torch.tensor([True, False, True, False, False])
    second = torch.tensor([False, True, False, True, False])
    v = torch.randn(5, 6, 3, generator=g).double()
    halves = [
        mixture.combine(mixture.restrict(posterior, side), mixture.of_everyone(v)).velocity
        for side in (first, second)
    ]
    weights = mixture.protect(posterior, first, second)
    assert torch.allclose(
        mixture.combine(weights, mixture.of_everyone(v)).velocity, (halves[0] + halves[1]) / 2
    )
    assert torch.equal(weights[:, 4], torch.zeros(6).double())

"""Values against the enumeration of all coalitions, and against what they promise."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from atoll.credit import shapley
from atoll.credit.shapley import Game
from tests import analytic

Parts = tuple[Tensor, Tensor, Tensor, Tensor]


def game(experts: int, seed: int, batch: int = 5) -> Parts:
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(batch, experts + 1, generator=g, dtype=torch.float64).softmax(1)[:, :experts]
    velocities = torch.randn(experts, batch, 2, 3, generator=g, dtype=torch.float64)
    base, target = torch.randn(2, batch, 2, 3, generator=g, dtype=torch.float64)
    return weights, shapley.differences(velocities, base), base, target


def worth(coalition: tuple[int, ...], weights: Tensor, apart: Tensor, base: Tensor, target: Tensor) -> Tensor:
    """U(S) by its definition."""
    v = base.clone()
    for i in coalition:
        v += weights[:, i, None, None] * apart[i]
    return -(v - target).square().flatten(1).mean(1)


def enumerated(experts: int, *parts: Tensor) -> Tensor:
    """Shapley's value by its definition: a mean over all coalitions of the others."""
    values = []
    for i in range(experts):
        others, total = [j for j in range(experts) if j != i], torch.zeros(len(parts[0]), dtype=torch.float64)
        for size in range(experts):
            factor = math.factorial(size) * math.factorial(experts - size - 1) / math.factorial(experts)
            for coalition in itertools.combinations(others, size):
                total += factor * (worth((*coalition, i), *parts) - worth(coalition, *parts))
        values.append(total)
    return torch.stack(values, 1)


@pytest.mark.parametrize("experts", [1, 2, 5, 8])
def test_the_closed_form_is_the_enumeration(experts):
    parts = game(experts, seed=experts)
    assert torch.allclose(shapley.shapley(Game.of(*parts)), enumerated(experts, *parts), atol=1e-10, rtol=0)


@pytest.mark.parametrize("values", [49, 64])
def test_a_pair_is_the_same_whoever_is_named_first(values):
    """To the last bit, in single precision, too: a pair's term is shared equally."""
    apart = torch.randn(3, 32, values, generator=torch.Generator().manual_seed(0))
    pairs = Game.of(torch.ones(32, 3), apart, apart[0], apart[1]).pairs
    assert torch.equal(pairs, pairs.mT)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_values_sum_to_the_gain_over_the_base(experts, seed):
    parts = game(experts, seed)
    assert torch.allclose(
        shapley.shapley(Game.of(*parts)).sum(1), shapley.gain(Game.of(*parts)), atol=1e-10, rtol=0
    )


@given(st.integers(2, 8), st.integers(0, 1000), st.floats(0.05, 0.95))
def test_an_expert_that_splits_up_gains_nothing(experts, seed, part):
    weights, apart, base, target = game(experts, seed)
    whole = shapley.shapley(Game.of(weights, apart, base, target))
    split = torch.cat([weights[:, :1] * part, weights[:, :1] * (1 - part), weights[:, 1:]], 1)
    clones = shapley.shapley(Game.of(split, torch.cat([apart[:1], apart]), base, target))
    assert torch.allclose(clones[:, 0] + clones[:, 1], whole[:, 0], atol=1e-10)
    assert torch.allclose(clones[:, 2:], whole[:, 1:], atol=1e-10)


def test_who_says_what_the_base_says_is_worth_nothing():
    weights, apart, base, target = game(4, 0)
    apart[2] = 0
    assert bool((shapley.shapley(Game.of(weights, apart, base, target))[:, 2] == 0).all())
    assert bool((shapley.leave_one_out(Game.of(weights, apart, base, target))[:, 2] == 0).all())


def test_leaving_one_out_is_what_the_others_lose():
    parts = game(5, 3)
    everyone = tuple(range(5))
    for i in everyone:
        others = tuple(j for j in everyone if j != i)
        lost = worth(everyone, *parts) - worth(others, *parts)
        assert torch.allclose(shapley.leave_one_out(Game.of(*parts))[:, i], lost, atol=1e-12)


def test_left_out_is_the_loss_of_the_others_with_their_weights_renormalised():
    weights, apart, base, target = game(4, 5)
    weights = weights / weights.sum(1, keepdim=True)
    whole = worth((0, 1, 2, 3), weights, apart, base, target)
    for i in range(4):
        others = weights.clone()
        others[:, i] = 0
        others = others / others.sum(1, keepdim=True)
        lost = whole - worth(tuple(j for j in range(4) if j != i), others, apart, base, target)
        assert torch.allclose(shapley.left_out(Game.of(weights, apart, base, target))[:, i], lost)


def test_where_nobody_is_left_the_base_answers():
    parts = game(2, 5)
    weights = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(5, 2)
    lost = shapley.left_out(Game.of(weights, *parts[1:]))
    assert torch.allclose(lost[:, 0], shapley.leave_one_out(Game.of(weights, *parts[1:]))[:, 0])
    assert torch.allclose(lost[:, 1], torch.zeros(5, dtype=torch.float64))


def test_the_loss_of_all_is_that_of_their_mixture():
    parts = game(5, 2)
    assert torch.allclose(shapley.losses(Game.of(*parts)), -worth((0, 1, 2, 3, 4), *parts))


def test_games_of_batches_are_the_game_of_all_and_scaling_is_of_differences():
    weights, apart, base, target = game(3, 1, batch=6)
    whole = Game.of(weights, apart, base, target)
    halves = [Game.of(weights[s], apart[:, s], base[s], target[s]) for s in (slice(0, 2), slice(2, 6))]
    joined = Game.joined(halves)
    for name in ("weights", "along", "pairs", "base"):
        assert torch.allclose(getattr(joined, name), getattr(whole, name))
    factors = torch.rand(6, 3, dtype=torch.float64)
    scaled = Game.of(weights, apart * factors.T[:, :, None, None], base, target)
    assert torch.allclose(shapley.shapley(whole.scaled(factors)), shapley.shapley(scaled))


def test_a_copy_makes_its_original_dispensable_but_not_worthless():
    """Why nobody is paid by leave-one-out alone."""
    data = analytic.grouped(3, [6, 6, 6], dims=4, spread=0.3)
    x_t, t, target = noisy(data, 4000)
    posterior, velocities, base = data.posterior(x_t, t), experts_of(data, x_t, t), common(data, x_t, t)
    apart = shapley.differences(velocities, base)
    halves = torch.cat([posterior[:, :1] / 2, posterior[:, :1] / 2, posterior[:, 1:]], 1)
    copied = torch.cat([apart[:1], apart])
    alone = shapley.leave_one_out(Game.of(posterior, apart, base, target)).mean(0)[0]
    beside = shapley.leave_one_out(Game.of(halves, copied, base, target)).mean(0)[0]
    values = shapley.shapley(Game.of(halves, copied, base, target)).mean(0)
    assert beside < 0.55 * alone
    assert values[0] == pytest.approx(
        float(shapley.shapley(Game.of(posterior, apart, base, target)).mean(0)[0]) / 2
    )


def test_redundancy_and_values_add_up():
    """Σ_j of an expert's row, with twice its part in the base's error, is its value with the sign turned."""
    weights, apart, base, target = game(4, 7)
    shared = shapley.redundancy(Game.of(weights, apart, base, target)).sum(2)
    error = torch.einsum("kbxy,bxy->bk", apart, base - target) / 6
    assert torch.allclose(
        -2 * weights * error - shared, shapley.shapley(Game.of(weights, apart, base, target))
    )


def noisy(data: analytic.FiniteData, num: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x_0 = data.points[torch.randint(len(data.points), (num,), generator=g)]
    noise = torch.randn(x_0.shape, generator=g, dtype=torch.float64)
    t = 0.05 + 0.9 * torch.rand(num, generator=g, dtype=torch.float64)
    return (1 - t)[:, None] * x_0 + t[:, None] * noise, t, noise - x_0


def experts_of(data: analytic.FiniteData, x_t: Tensor, t: Tensor) -> Tensor:
    return torch.stack([data.expert(k, x_t, t) for k in range(data.clusters)])


def common(data: analytic.FiniteData, x_t: Tensor, t: Tensor) -> Tensor:
    """A base that knows only the mean of the data."""
    return (x_t - data.points.mean(0)) / t[:, None]


def test_exact_experts_are_all_worth_something():
    data = analytic.grouped(4, [5, 5, 5, 5], dims=6, spread=0.3)
    x_t, t, target = noisy(data, 4000)
    apart = shapley.differences(experts_of(data, x_t, t), common(data, x_t, t))
    values = shapley.shapley(Game.of(data.posterior(x_t, t), apart, common(data, x_t, t), target)).mean(0)
    assert bool((values > 0).all())


def test_replaced_is_the_loss_at_home_of_the_others_by_their_shares():
    """By velocities themselves: the mean of the others in the place of the one, whatever the base is."""
    _, apart, base, target = parts = game(3, 4)
    cluster, priors = torch.tensor([0, 7, 7, 2, 0]), torch.tensor([0.5, 0.3, 0.2])
    lost = shapley.replaced(Game.of(*parts), cluster, (0, 7, 2), priors)
    v = apart + base[None]
    for i, home in enumerate((0, 7, 2)):
        share = priors.double().clone()
        share[i] = 0
        others = torch.einsum("k,kb...->b...", share / share.sum(), v)
        direct = (others - target).square().flatten(1).mean(1) - (v[i] - target).square().flatten(1).mean(1)
        assert torch.allclose(lost[:, i], torch.where(cluster == home, direct, 0.0))


def test_at_the_noise_replaced_is_how_far_a_cluster_lies_from_the_rest():
    """At t = 1 perfect experts say noise - μ_i: λ_i ‖μ_i - μ_{-i}‖² of unequal clusters, by hand."""
    means = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, -1.0]]).double()
    cluster, priors = torch.tensor([0, 0, 1, 2]), torch.tensor([0.5, 0.25, 0.25])
    noise = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).double()
    apart = -means[:, None].expand(3, 4, 2)
    target = noise - means[cluster]  # its mean given the cluster
    lost = shapley.replaced(Game.of(torch.ones(4, 3) / 3, apart, noise, target), cluster, (0, 1, 2), priors)
    rest = [(0.25 * means[1] + 0.25 * means[2]) / 0.5, (0.5 * means[0] + 0.25 * means[2]) / 0.75]
    away = [float((means[i] - rest[i]).square().mean()) for i in range(2)]
    assert lost.mean(0)[:2].tolist() == pytest.approx([0.5 * away[0], 0.25 * away[1]])

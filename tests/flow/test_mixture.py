import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from atoll.flow import mixture
from tests.analytic import FiniteData, grouped


def combine(weights: Tensor, velocities: Tensor) -> Tensor:
    return mixture.combine(weights, mixture.of_everyone(velocities)).velocity


@pytest.mark.parametrize("t", [0.02, 0.1, 0.3, 0.5, 0.8, 0.99])
def test_mixture_identity(t):
    """Σ_k p(k | x_t) v_k(x_t) is the velocity of all data together: the claim that everything rests on."""
    data = grouped(4, [3, 10, 5, 7], dims=6, spread=0.4)
    g = torch.Generator().manual_seed(1)
    x_t = torch.randn(50, 6, generator=g, dtype=torch.float64)
    times = torch.full((50,), t, dtype=torch.float64)
    experts = torch.stack([data.expert(k, x_t, times) for k in range(4)])
    whole = data.velocity(x_t, times)
    error = combine(mixture.full(data.posterior(x_t, times)), experts) - whole
    assert (error.abs() / whole.abs().clamp(min=1)).max() < 1e-10


def test_the_identity_fails_without_the_prior():
    """Teeth: a posterior over clusters of equal weight is another one."""
    data = grouped(2, [2, 30], dims=3, spread=0.4)
    x_t, t = torch.zeros(5, 3, dtype=torch.float64), torch.full((5,), 0.7, dtype=torch.float64)
    experts = torch.stack([data.expert(k, x_t, t) for k in range(2)])
    balanced = data.posterior(x_t, t) / data.priors
    balanced = balanced / balanced.sum(1, keepdim=True)
    assert (combine(balanced, experts) - data.velocity(x_t, t)).abs().max() > 1e-2


def test_weights_multiply_samples_and_not_pixels():
    """A batch as large as a picture is wide must not be broadcast along the wrong axis."""
    velocities = torch.ones(2, 4, 1, 4, 4)
    weights = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.25, 0.25]])
    combined = combine(weights, velocities)
    assert combined.flatten(1).mean(1).tolist() == [1.0, 1.0, 1.0, 0.5]
    assert combined.flatten(1).std(1).max() == 0


def normalised(rows):
    p = torch.tensor(rows, dtype=torch.float64)
    return p / p.sum(1, keepdim=True)


posteriors = st.lists(st.lists(st.floats(0.001, 1), min_size=5, max_size=5), min_size=1, max_size=6)


@given(posteriors, st.integers(1, 7))
def test_top_k_keeps_the_k_largest_in_proportion(rows, k):
    p = normalised(rows)
    w = mixture.top_k(p, k)
    torch.testing.assert_close(w.sum(1), torch.ones(len(p), dtype=torch.float64))
    assert ((w > 0).sum(1) == min(k, 5)).all()
    kept = w > 0
    assert (torch.where(kept, p, 1).min(1).values >= torch.where(kept, 0, p).max(1).values).all()
    ratio = torch.where(kept, w / p, torch.nan)
    assert (ratio.nan_to_num(0).max(1).values - ratio.nan_to_num(torch.inf).min(1).values).abs().max() < 1e-9


@given(posteriors, st.integers(1, 7))
def test_what_is_left_out_is_what_weights_miss_to_one(rows, k):
    p = normalised(rows)
    w = mixture.with_rest(mixture.top_k(p, k), p)
    torch.testing.assert_close(torch.where(w > 0, w, p), p)  # not renormalised: kept ones have what they had
    torch.testing.assert_close(1 - w.sum(1), p.sort(1, descending=True).values[:, k:].sum(1))


@given(st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_cumulative_posterior(u):
    p = torch.tensor([[0.2, 0.0, 0.5, 0.3]])
    expected = 0 if u < 0.2 else 2 if u < 0.7 else 3
    if min(abs(u - 0.2), abs(u - 0.7)) > 1e-6:
        assert mixture.draw(p, torch.tensor([u], dtype=torch.float64)).item() == expected


def test_draw_never_takes_an_expert_without_probability():
    p = torch.tensor([[0.0, 1.0, 0.0]]).expand(1000, 3)
    uniform = torch.linspace(0, 1 - 1e-7, 1000, dtype=torch.float64)
    assert (mixture.draw(p, uniform) == 1).all()


def test_one_hot():
    assert mixture.one_hot(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


@given(posteriors, st.floats(0.01, 1))
def test_nucleus_is_the_fewest_experts_with_that_mass(rows, mass):
    p = normalised(rows)
    w = mixture.nucleus(p, mass)
    torch.testing.assert_close(w.sum(1), torch.ones(len(p), dtype=torch.float64))
    for row, weights in zip(p, w, strict=True):
        kept = row[weights > 0]
        assert kept.sum() >= mass - 1e-9
        assert kept.sum() - kept.min() < mass + 1e-9, "one fewer would not do"


@given(posteriors, st.floats(0, 1))
def test_threshold_keeps_what_reaches_it_and_at_least_the_best(rows, least):
    p = normalised(rows)
    w = mixture.threshold(p, least)
    torch.testing.assert_close(w.sum(1), torch.ones(len(p), dtype=torch.float64))
    assert ((w > 0) == ((p >= least) | (p == p.max(1, keepdim=True).values))).all()


def test_sampling_experts_is_unbiased():
    p = torch.tensor([[0.5, 0.3, 0.2]]).expand(40_000, 3)
    uniform = torch.rand(40_000, 2, generator=torch.Generator().manual_seed(0))
    w = mixture.sample(p, uniform)
    assert ((w.mean(0) - p[0]).abs() < 4 * (0.25 / 80_000) ** 0.5).all()  # four standard errors
    assert w.sum(1).unique().tolist() == [1.0]
    assert set(w.unique().tolist()) == {0.0, 0.5, 1.0}


def test_restriction_is_the_posterior_of_the_data_that_is_served():
    """Serving clusters 0 and 2 alone is the model of their data: exact, not a heuristic."""
    data = grouped(3, [4, 9, 2], dims=5, spread=0.3)
    kept = data.cluster != 1
    fewer = FiniteData(data.points[kept], data.cluster[kept] // 2, 2)
    g = torch.Generator().manual_seed(0)
    x_t, t = torch.randn(20, 5, generator=g, dtype=torch.float64), torch.full((20,), 0.6, dtype=torch.float64)
    restricted = mixture.restrict(data.posterior(x_t, t), torch.tensor([True, False, True]))
    torch.testing.assert_close(restricted[:, [0, 2]], fewer.posterior(x_t, t))
    assert restricted[:, 1].abs().max() == 0


def test_restriction_to_experts_without_probability_is_even():
    p = torch.tensor([[0.0, 1.0, 0.0]])
    assert mixture.restrict(p, torch.tensor([True, False, True])).tolist() == [[0.5, 0.0, 0.5]]


def test_temperature():
    p = torch.tensor([[0.8, 0.2]], dtype=torch.float64)
    torch.testing.assert_close(
        mixture.temper(p, 0.5), torch.tensor([[0.64, 0.04]], dtype=torch.float64) / 0.68
    )
    assert torch.equal(mixture.temper(p, 1.0), p)


def test_disagreement_by_hand():
    velocities = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # two experts, one sample
    weights = torch.tensor([[0.5, 0.5]])
    # mean (0.5, 0.5): each expert is at squared distance 0.5, the mean has squared length 0.5
    answers = mixture.of_everyone(velocities)
    torch.testing.assert_close(mixture.combine(weights, answers).disagreement, torch.tensor([1.0]))
    assert mixture.combine(torch.tensor([[1.0, 0.0]]), answers).disagreement.item() == 0


@given(st.integers(0, 10_000))
def test_answers_by_rows_are_answers_of_everyone(seed):
    """Whoever has no weight in a row need not answer for it, in whatever parts and order answers come."""
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(7, 3, generator=g, dtype=torch.float64) * (torch.rand(7, 3, generator=g) < 0.6)
    weights[:, 0] += 0.1
    weights = weights / weights.sum(1, keepdim=True)
    velocities = torch.randn(3, 7, 2, 3, generator=g, dtype=torch.float64)
    every = mixture.combine(weights, mixture.of_everyone(velocities))
    answers = [
        mixture.Answer(0, slice(0, 3), velocities[0, :3]),
        mixture.Answer(0, slice(3, 7), velocities[0, 3:]),
    ]
    for k in (2, 1):
        rows = weights[:, k].nonzero()[:, 0]
        answers.append(mixture.Answer(k, rows, velocities[k, rows]))
    some = mixture.combine(weights, iter(answers))
    torch.testing.assert_close(some.velocity, every.velocity, atol=1e-12, rtol=0)
    torch.testing.assert_close(some.disagreement, every.disagreement, atol=1e-6, rtol=0)


def test_shares_of_a_class_by_hand():
    counts = torch.tensor([[3, 0, 0], [1, 4, 0]])  # nobody has seen the third class
    priors = torch.tensor([0.375, 0.625])
    expected = torch.tensor([[0.75, 0.25], [0, 1], [0.375, 0.625], [0.375, 0.625]])
    torch.testing.assert_close(mixture.given_class(counts, priors), expected)

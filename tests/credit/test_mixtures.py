"""Distances of mixtures from the moments of parts, against explicit samples and explicit coalitions."""

import itertools

import pytest
import torch

from atoll.credit import mixtures
from atoll.credit.estimate import jackknife
from atoll.credit.mixtures import Moments
from atoll.evaluate.distances import Frechet

SOURCE = torch.Generator().manual_seed(5)
DATA = torch.randn(400, 3, generator=SOURCE, dtype=torch.float64) * 2
CENTRES = torch.randn(4, 1, 3, generator=SOURCE, dtype=torch.float64)
ROWS = CENTRES * 2 + torch.randn(4, 30, 3, generator=SOURCE, dtype=torch.float64)
COUNTS = [3, 2, 4, 1]
PRIORS = torch.tensor(COUNTS).double() / 10
TO = Frechet(DATA)
NOTHING = float(TO.covariance.trace())


def explicit(coalition, counts=COUNTS, rows=ROWS):
    """The distance of samples that are really put together, each part as often as its share says."""
    if not coalition:
        return NOTHING
    together = torch.cat([rows[k].repeat(counts[k], 1) for k in coalition])
    return TO.of_moments(together.mean(0), together.T.cov(correction=0))


def enumerated(counts=COUNTS, rows=ROWS):
    """Shapley's value by all orders in which parts can come."""
    values, orders = torch.zeros(len(counts)).double(), list(itertools.permutations(range(len(counts))))
    for order in orders:
        for place, k in enumerate(order):
            values[k] += explicit(order[:place], counts, rows) - explicit(order[: place + 1], counts, rows)
    return values / len(orders)


def test_a_mixture_has_the_moments_of_its_samples():
    together = torch.cat([ROWS[k].repeat(COUNTS[k], 1) for k in range(4)])
    mean, covariance = Moments.of(ROWS).mixed(PRIORS)
    assert float((mean - together.mean(0)).abs().max()) < 1e-12
    assert float((covariance - together.T.cov(correction=0)).abs().max()) < 1e-12


def test_what_is_lost_is_what_samples_without_the_part_lose():
    lost = mixtures.left_out(TO.of_moments, Moments.of(ROWS), PRIORS)
    for k in range(4):
        others = [j for j in range(4) if j != k]
        assert float(lost[k]) == pytest.approx(explicit(others) - explicit(range(4)), abs=1e-10)


def test_values_are_those_of_all_orders_and_sum_to_what_all_are_worth():
    values = mixtures.shapley(TO.of_moments, Moments.of(ROWS), PRIORS, NOTHING)
    assert float((values - enumerated()).abs().max()) < 1e-10
    assert float(values.sum()) == pytest.approx(NOTHING - explicit(range(4)), abs=1e-10)


def test_many_parts_by_drawn_orders_have_the_same_sum_and_nearly_the_same_values(monkeypatch):
    exact = mixtures.shapley(TO.of_moments, Moments.of(ROWS), PRIORS, NOTHING)
    monkeypatch.setattr(mixtures, "EXACT", 3)
    drawn = mixtures.shapley(
        TO.of_moments, Moments.of(ROWS), PRIORS, NOTHING, torch.Generator().manual_seed(0)
    )
    assert float(drawn.sum()) == pytest.approx(float(exact.sum()), abs=1e-10)
    assert float((drawn - exact).abs().max()) < 0.15 * float(exact.abs().max())
    assert not torch.equal(drawn, exact)


def test_clones_are_not_worth_what_they_were_split_from():
    """Not split-neutral, and the docstring says so: why nobody is paid by it."""
    rows, priors = torch.cat([ROWS, ROWS[3:]]), torch.tensor([3, 2, 4, 0.5, 0.5]).double() / 10
    one = mixtures.shapley(TO.of_moments, Moments.of(ROWS), PRIORS, NOTHING)
    two = mixtures.shapley(TO.of_moments, Moments.of(rows), priors, NOTHING)
    assert float(two[3]) == pytest.approx(float(two[4]), abs=1e-10)
    assert float(two.sum()) == pytest.approx(float(one.sum()), abs=1e-10)
    assert abs(float(two[3:].sum() - one[3])) > 0.05 * float(one.abs().max())


def test_the_jackknife_takes_the_bias_of_order_one_over_n_away():
    """A variance divided by n is too small by the factor 1 - 1/n, exactly what it takes away."""
    values = torch.randn(24, generator=SOURCE, dtype=torch.float64)
    found = jackknife(24, lambda rows: values[rows].var(correction=0), 24)
    assert float(found.mean) == pytest.approx(float(values.var()), abs=1e-12)
    mean = jackknife(24, lambda rows: values[rows].mean(), 24)
    assert float(mean.error) == pytest.approx(float(values.std()) / 24**0.5, abs=1e-12)


def test_errors_are_about_what_other_draws_differ_by():
    """And the bias that is left is small beside them, 60 small estimates against a large one."""
    centres = CENTRES[:, 0] * 2

    def lost(num, seed, groups):
        source = torch.Generator().manual_seed(seed)
        rows = centres[:, None] + torch.randn(4, num, 3, generator=source, dtype=torch.float64)
        if not groups:
            return mixtures.left_out(TO.of_moments, Moments.of(rows), PRIORS)
        return jackknife(
            num, lambda some: mixtures.left_out(TO.of_moments, Moments.of(rows[:, some]), PRIORS), groups
        )

    small = [lost(24, seed, 6) for seed in range(60)]
    means = torch.stack([one.mean for one in small])
    claimed = torch.stack([one.error for one in small]).square().mean(0).sqrt()
    assert float((claimed / means.std(0)).log().abs().max()) < 0.4
    truth = lost(40_000, 1, 0)
    assert float(((means.mean(0) - truth) / (means.std(0) / 60**0.5)).abs().max()) < 4

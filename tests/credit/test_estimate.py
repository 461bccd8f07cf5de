import pytest
import torch

from atoll.credit import estimate


def test_one_time_in_each_part():
    times = estimate.stratified_times(8, torch.rand(8, generator=torch.Generator().manual_seed(0)))
    assert (times * 8).long().tolist() == list(range(8))


def test_strata_by_hand():
    rows = torch.tensor([[1.0], [3.0], [10.0], [20.0]])
    found = estimate.estimate(rows, torch.tensor([0, 0, 1, 1]))
    assert float(found.mean) == pytest.approx((2 + 15) / 2)
    assert float(found.error) == pytest.approx(((2 / 2 + 50 / 2) ** 0.5) / 2)


def test_strata_count_alike_however_many_rows_they_have():
    rows, stratum = torch.tensor([1.0, 1.0, 1.0, 1.0, 5.0, 5.0]), torch.tensor([0, 0, 0, 0, 3, 3])
    assert float(estimate.estimate(rows, stratum).mean) == 3.0


def test_a_stratum_of_one_row_is_no_reason_for_false_certainty():
    rows = torch.tensor([1.0, 2.0, 9.0])
    plain = estimate.estimate(rows)
    assert float(estimate.estimate(rows, torch.tensor([0, 0, 1])).error) == float(plain.error)


def test_errors_are_those_of_repetition():
    """A thousand small estimates scatter about the truth as each of them says."""
    g = torch.Generator().manual_seed(0)
    means, errors = [], []
    for _ in range(1000):
        t = estimate.stratified_times(40, torch.rand(40, generator=g, dtype=torch.float64))
        rows = 3 * t + torch.randn(40, generator=g, dtype=torch.float64)
        found = estimate.estimate(rows, (t * 10).long())
        means.append(float(found.mean))
        errors.append(float(found.error))
    scatter = torch.tensor(means).std()
    assert float(torch.tensor(means).mean()) == pytest.approx(1.5, abs=4 * float(scatter) / 1000**0.5)
    assert float(scatter) == pytest.approx(sum(errors) / len(errors), rel=0.1)


def test_groups_and_shares():
    rows = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 8.0]])
    first, second = estimate.by_group(rows, torch.tensor([0, 0, 1]), 2)
    assert first is not None
    assert first.mean.tolist() == [2.0, 0.0]
    assert second is None
    worth = estimate.Estimate(torch.tensor([3.0, -1.0, 1.0]), torch.zeros(3))
    assert estimate.shares(worth).tolist() == [0.75, 0.0, 0.25]
    assert estimate.shares(estimate.Estimate(torch.tensor([-1.0]), torch.zeros(1))).tolist() == [0.0]


def test_controls_leave_the_mean_and_take_the_scatter():
    """A value that is a control plus little: the adjusted mean is that of the rest, and its error too."""
    from atoll.credit.estimate import adjusted

    source = torch.Generator().manual_seed(0)
    means, errors = [], []
    for _ in range(200):
        stratum = torch.arange(4).repeat_interleave(10)
        control = torch.randn(40, 2, generator=source).double()
        rest = 0.1 * torch.randn(40, generator=source).double() + stratum
        one = adjusted(
            rest + control @ torch.tensor([2.0, -1.0]).double(), control, stratum, torch.arange(40), 4
        )
        means.append(one.mean)
        errors.append(one.error)
    found, claimed = torch.stack(means), torch.stack(errors)
    assert float(found.mean()) == pytest.approx(1.5, abs=0.01)
    assert float(found.std()) == pytest.approx(float(claimed.square().mean().sqrt()), rel=0.2)
    assert float(claimed.mean()) < 0.03, "without controls it would be 0.35"


def test_without_controls_it_is_the_stratified_estimate_and_repeated_samples_count_once():
    from atoll.credit.estimate import adjusted

    rows, stratum = torch.tensor([1.0, 3.0, 10.0, 14.0]).double(), torch.tensor([0, 0, 1, 1])
    nothing = torch.zeros(4, 1).double()
    one, plain = adjusted(rows, nothing, stratum, torch.arange(4), 2), estimate.estimate(rows, stratum)
    assert (float(one.mean), float(one.error)) == pytest.approx((float(plain.mean), float(plain.error)))
    twice = adjusted(rows, nothing, stratum, torch.tensor([0, 1, 0, 1]), 2)
    assert float(twice.error) > float(one.error), "both were low, or both high"

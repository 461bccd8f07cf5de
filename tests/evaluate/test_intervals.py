import math

import pytest
import torch
from scipy import stats

from atoll.evaluate import intervals


def test_the_interval_of_a_mean_is_that_of_its_standard_error():
    rows = torch.randn(2000, generator=torch.Generator().manual_seed(0)).double()
    found = intervals.mean_of_rows(rows, 400)
    half = 1.96 * float(rows.std()) / math.sqrt(2000)
    assert found.value == pytest.approx(float(rows.mean()))
    assert found.high - found.value == pytest.approx(half, rel=0.15)
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert found.num == 2000


def test_a_share_stays_between_none_and_all():
    few = torch.tensor([True, False, False, False, False, False, False, False])
    assert intervals.mean_of_rows(few, 100).low == 0
    assert intervals.mean_of_rows(~few, 100).high == 1
    assert intervals.mean_of_rows(few.double(), 100).low < 0, "of other numbers nothing is known"


def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = 0
    for seed in range(200):
        rows = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        found = intervals.mean_of_rows(rows, 100, seed)
        held += found.low <= 0 <= found.high
    assert 180 <= held <= 199


def test_the_same_seed_gives_the_same_interval():
    rows = torch.rand(100, generator=torch.Generator().manual_seed(0))
    assert intervals.mean_of_rows(rows, 20) == intervals.mean_of_rows(rows, 20)
    assert intervals.mean_of_rows(rows, 20) != intervals.mean_of_rows(rows, 20, seed=1)


@pytest.mark.parametrize("num", [2, 3, 8])
def test_repetitions_have_students_interval(num):
    values = [1.0, 4.0, 2.0, 5.0, 3.0, 3.5, 2.5, 4.5][:num]
    found = intervals.over_repetitions(values)
    low, high = stats.t.interval(0.95, num - 1, loc=found.value, scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-3)


def test_one_repetition_has_no_interval():
    found = intervals.over_repetitions([2.0]).facts()
    assert found == {"value": 2.0, "low": None, "high": None, "num": 1}


def test_the_interval_of_a_ratio_is_that_of_its_draws():
    source = torch.Generator().manual_seed(0)
    x = 10 + 0.3 * torch.randn(100_000, generator=source).double()
    y = 20 + 0.8 * torch.randn(100_000, generator=source).double()
    above, below = (
        {"value": mean, "low": mean - 1.96 * error, "high": mean + 1.96 * error, "num": 50}
        for mean, error in ((10.0, 0.3), (20.0, 0.8))
    )
    found = intervals.ratio(above, below)
    assert found.value == pytest.approx(0.5)
    assert found.high - found.value == pytest.approx(1.96 * float((x / y).std()), rel=0.02)
    unknown = intervals.ratio({**above, "low": None, "high": None}, below)
    assert math.isnan(unknown.low)

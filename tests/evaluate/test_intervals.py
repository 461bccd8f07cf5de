import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


def test_a_table_of_students_t_is_the_distributions_own():
    expected = [stats.t.ppf(0.975, freedom) for freedom in range(1, len(intervals.STUDENT) + 1)]
    assert list(intervals.STUDENT) == pytest.approx(expected, rel=5e-4)
    assert stats.norm.ppf(0.975) == pytest.approx(intervals.NORMAL, abs=1e-4)


def test_many_repetitions_have_the_normal_interval():
    values = [float(index % 4) for index in range(11)]
    found = intervals.over_repetitions(values)
    assert found.high - found.value == pytest.approx(1.96 * float(stats.sem(values)))


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12), st.floats(0.5, 4), st.floats(-50, 50))
def test_intervals_follow_scale_and_origin(values, scale, origin):
    plain = intervals.over_repetitions(values)
    moved = intervals.over_repetitions([scale * value + origin for value in values])
    for before, after in zip(plain[:3], moved[:3], strict=True):
        assert after == pytest.approx(scale * before + origin, abs=1e-6)


def test_a_statistic_is_asked_for_all_rows_and_for_as_many_drawn_with_repetitions():
    asked = []

    def count(chosen):
        asked.append(chosen.tolist())
        return float(len(asked))

    found = intervals.bootstrap(6, count, 4)
    assert asked[0] == [0, 1, 2, 3, 4, 5]
    assert [len(rows) for rows in asked] == [6] * 5
    assert all(0 <= row < 6 for rows in asked for row in rows)
    assert any(len(set(rows)) < 6 for rows in asked[1:])
    half = 1.96 * torch.tensor([2.0, 3.0, 4.0, 5.0]).std().item()
    assert found == pytest.approx((1, 1 - half, 1 + half, 6))


def test_one_resample_says_nothing_of_the_error():
    found = intervals.bootstrap(3, lambda chosen: 1.0, 1).facts()
    assert found == {"value": 1.0, "low": None, "high": None, "num": 3}


def test_a_ratio_by_hand():
    above = {"value": 3.0, "low": 2.7, "high": 3.3, "num": 7}
    below = {"value": 4.0, "low": 3.2, "high": 4.8, "num": 9}
    found = intervals.ratio(above, below)
    half = 0.75 * math.hypot(0.1, 0.2)
    assert found == pytest.approx((0.75, 0.75 - half, 0.75 + half, 7))

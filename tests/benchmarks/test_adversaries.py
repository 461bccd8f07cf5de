"""The sums of the adversaries' table, by hand."""

import pytest

from atoll.net.verification.policy import AuditPolicy
from benchmarks import _liars, adversaries
from tests.net.adversaries import HONEST, INTERVALS, Checks


def test_a_share_has_wilsons_interval():
    """5 of 10: 0.5 ± 1.96 sqrt(0.025 + 0.0096) / 1.384, by the formula of 1927."""
    share = adversaries.proportion(5, 10)
    assert (share["low"], share["high"]) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert adversaries.proportion(0, 200)["high"] == pytest.approx(0.01885, abs=1e-4)


def test_a_mean_has_its_standard_error():
    measured = adversaries.mean([1.0, 2.0, 3.0, 4.0])
    assert measured["value"] == 2.5
    assert measured["high"] - 2.5 == pytest.approx(1.96 * 1.29099 / 2, rel=1e-4)


def test_a_row_tells_newcomers_from_the_trusted():
    rules = AuditPolicy()
    bad = Checks({}, {}, ("differs",) * INTERVALS, (0.7,) * INTERVALS, (0.8,) * INTERVALS, 0.5)
    row = adversaries.row([bad], rules)
    assert row["relative"] == [0.7, 0.7]
    assert row["newcomer"]["units_until_then"] == 1.0
    assert row["newcomer"]["profit"]["value"] == pytest.approx(-0.51)
    assert row["trusted"]["units_until_then"] > 5
    assert row["trusted"]["profit"]["high"] < 0
    assert row["trusted"]["poisoned_models"] == 0


def test_honest_careers_are_never_found_out():
    runs = adversaries.careers([HONEST], AuditPolicy())
    assert {one.caught for one in runs} == {None}


def test_the_largest_share_that_is_not_ruled_out():
    """Without an alarm it is 1 - 0.05^(1/n): the rule of three; with one, by the binomial's own sum."""
    assert adversaries.exact(0, 3000) == pytest.approx(1 - 0.05 ** (1 / 3000), rel=1e-9)
    share = adversaries.exact(1, 50)
    assert (1 - share) ** 50 + 50 * share * (1 - share) ** 49 == pytest.approx(0.05)


@pytest.mark.thorough
def test_a_liar_in_a_real_coordinator_brings_nothing_into_the_model():
    row = _liars.career(_liars.SCHEMES["one interval of eight"], AuditPolicy(release=1.0), seed=1)
    assert not row["poisoned"] and row["profit"] < 0

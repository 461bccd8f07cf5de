"""Bands by hand, and judgements at their edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.net.protocol import Numerics
from atoll.net.verification import bands
from atoll.net.verification.bands import Bands
from atoll.net.verification.comparison import Comparison, Difference


def comparison(relative: float, cosine: float = 1.0, worst: float = 0.0, **more) -> Comparison:
    kinds = {"model": Difference(relative=relative, cosine=cosine, worst=worst or relative)}
    return Comparison(**{"equal": False, "counts": True, "kinds": kinds, **more})


def test_a_band_is_four_times_the_largest_that_was_measured():
    band = bands.calibrate([comparison(0.01, 0.999), comparison(0.03, 0.998, 0.08), comparison(0.02)])
    limit = band.limits["model"]
    assert (limit.relative, limit.worst) == pytest.approx((0.12, 0.32))
    assert limit.cosine == pytest.approx(0.992)
    assert band.measured == 3


def test_rounding_is_always_granted():
    limit = bands.calibrate([comparison(0.0)]).limits["model"]
    assert limit.relative == limit.worst == bands.LEAST
    assert limit.cosine == 1 - bands.LEAST


BAND = bands.calibrate([comparison(0.01, 0.99975)])  # up to 0.04


@pytest.mark.parametrize(
    ("found", "same", "judgement"),
    [
        (comparison(0.5, equal=True), True, "agrees"),
        (comparison(0.039), False, "agrees"),
        (comparison(0.039), True, "agrees"),
        (comparison(0.05), False, "inconclusive"),
        (comparison(0.05), True, "differs"),
        (comparison(0.09), False, "differs"),
        (comparison(0.01, worst=0.05), False, "inconclusive"),
        (comparison(0.01, 0.99), False, "differs"),
        (comparison(0.01, counts=False), False, "differs"),
        (comparison(1e9), False, "differs"),
    ],
)
def test_judgements_at_the_edges(found, same, judgement):
    assert bands.judge(found, BAND, same_class=same) == judgement


def test_without_a_band_nobody_is_found_guilty():
    assert bands.judge(comparison(0.9), None, same_class=False) == "inconclusive"
    assert bands.judge(comparison(0.9, equal=True), None, same_class=False) == "agrees"
    assert bands.judge(comparison(0.0, counts=False), None, same_class=False) == "differs"


def test_a_part_that_was_never_measured_is_outside():
    kinds = {"model": Difference(relative=0, cosine=1), "ema": Difference(relative=1e-9, cosine=1)}
    found = Comparison(equal=False, counts=True, kinds=kinds)
    assert bands.judge(found, BAND, same_class=False) == "differs"


@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(0.9, 1)), min_size=1, max_size=5))
def test_what_a_band_was_made_of_lies_within_it(pairs):
    measured = [comparison(relative, cosine) for relative, cosine in pairs]
    band = bands.calibrate(measured)
    assert {bands.judge(one, band, same_class=False) for one in measured} == {"agrees"}


def test_classes_whose_band_is_too_wide_do_not_audit_each_other():
    wide = bands.calibrate([comparison(0.2)])
    table = Bands(pairs={bands.pair("b", "a"): BAND, bands.pair("a", "c"): wide})
    assert table.between("a", "b") == table.between("b", "a") == BAND
    assert table.between("a", "c") is None
    assert table.between("a", "d") is None
    assert Bands.model_validate_json(table.model_dump_json()) == table


def test_the_name_of_a_class_has_all_that_decides_bits():
    usual = Numerics(torch="2.13", precision="float32", capability="AVX2")
    assert bands.name_of(usual) == "cpu, AVX2, torch 2.13, float32, 1 threads, eager"
    changes = [
        {"device": "cuda"},
        {"torch": "2.12"},
        {"precision": "bfloat16"},
        {"threads": 2},
        {"compiled": True},
        {"micro_batch": 4},
        {"capability": "AVX512"},
    ]
    names = {bands.name_of(usual.model_copy(update=change)) for change in changes}
    assert len(names | {bands.name_of(usual)}) == len(changes) + 1

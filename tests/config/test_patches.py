import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.config import patches


@pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((1, 28, 28), (2, 2)),
        ((4, 32, 32), (2, 2)),
        ((3, 27, 45), (3, 3)),
        ((3, 29, 28), (1, 2)),
        ((2, 64), (1,)),
        ((2, 128), (2,)),
        ((1, 1000), (20,)),
        ((1, 100), (1,)),
        ((1, 16000), (250,)),
        ((3, 8, 16, 16), (1, 2, 2)),
    ],
)
def test_the_usual_patch(shape, patch):
    assert patches.usual(shape) == patch


SHAPES = st.lists(st.integers(1, 300), min_size=2, max_size=4).map(tuple)


@given(SHAPES)
def test_the_usual_patch_always_fits(shape):
    assert patches.fits(patches.usual(shape), shape)


@given(SHAPES, st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_the_nearest_patch_fits_and_one_that_fits_is_its_own(shape, patch):
    near = patches.nearest(patch, shape)
    assert patches.fits(near, shape)
    if patches.fits(patch, shape):
        assert near == tuple(patch)


@given(st.integers(64, 20_000))
def test_a_series_has_a_bearable_number_of_tokens(length):
    """At most 127 where some divisor allows it: the patch is never more than a factor off what was wanted."""
    (step,) = patches.usual((1, length))
    divisors = [d for d in range(1, length + 1) if length % d == 0 and 64 <= math.ceil(length / d) < 128]
    if divisors:
        assert length // step < 128


def test_rank_is_said_with_the_patch_that_would_fit():
    said = patches.misfit((2, 2), (2, 64), "expert.patch")
    assert said == (
        "expert.patch = [2, 2] is for 2 axes, but samples of 2 x 64 (channels, then the grid) have 1 axis: "
        "[1] would fit, or leave it out"
    )


def test_what_does_not_divide_is_said_with_what_would():
    said = patches.misfit((5, 5), (1, 28, 28), "router.patch")
    assert "router.patch = [5, 5] does not divide samples of 1 x 28 x 28" in said
    assert "[4, 4] would fit" in said

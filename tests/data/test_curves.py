import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFont

from atoll.data import curves


def test_the_scale_is_that_of_the_data():
    assert curves.scale_of([0.0, 1.0], [1.0, 2.0]) == (-5.0, 7.0)


def test_drawings_of_one_scale_can_be_compared():
    """A constant of 0 and one of 2: the second is drawn higher, which scales of their own would hide."""
    low, high = (curves.draw(np.full((1, 20), value), (-5, 7)) for value in (0.0, 2.0))
    inside = slice(curves.EDGE, curves.HEIGHT - curves.BOTTOM - 1), slice(curves.LEFT, curves.WIDTH - 4)
    rows = [int(np.argwhere(drawn[inside] == 0)[:, 0].mean()) for drawn in (low, high)]
    assert rows[1] < rows[0]
    span = curves.HEIGHT - 1 - curves.BOTTOM - curves.EDGE
    assert rows[0] - rows[1] == pytest.approx(span * 2 / 12, abs=1)


def test_there_are_axes_and_numbers():
    drawn = curves.draw(np.zeros((1, 64)), (-1, 1))[..., 0]
    assert drawn.shape == (curves.HEIGHT, curves.WIDTH)
    assert (drawn[curves.EDGE : -curves.BOTTOM, curves.LEFT - 2] == curves.FAINT).all()
    assert (drawn[:, : curves.LEFT - 4] < 128).any()  # the scale
    assert (drawn[-curves.BOTTOM + 2 :] < 128).any()  # the time


def test_what_leaves_the_scale_is_still_inside():
    drawn = curves.draw(np.array([[0.0, 100.0, -100.0]]), (-1, 1))[..., 0]
    assert (drawn[:, -1] == 255).all()
    assert drawn.min() == 0


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_any_number_of_channels(channels):
    values = np.random.default_rng(0).normal(size=(channels, 30))
    assert curves.draw(values, (-3, 3)).shape == (curves.HEIGHT, curves.WIDTH, 1)


@given(st.floats(-1e12, 1e12))
def test_numbers_beside_the_axes_have_room_and_are_right(number):
    text = curves._short(number)
    assert ImageFont.load_default(8).getlength(text) <= curves.LEFT - 4 or abs(number) < 1e-9
    assert float(text) == pytest.approx(number, rel=0.5)


def test_two_channels_are_a_path_in_the_plane():
    drawing = curves.draw(np.array([[0.0, 1.0], [0.5, 0.5]]), (0, 1))[..., 0]
    inside = drawing[
        curves.EDGE : curves.HEIGHT - curves.BOTTOM - 1, curves.LEFT : curves.WIDTH - curves.EDGE
    ]
    dark = np.argwhere(inside < 128)
    assert dark[:, 0].max() - dark[:, 0].min() <= 2  # one level line …
    assert dark[:, 1].max() - dark[:, 1].min() > 50  # … right across

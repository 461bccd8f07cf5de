"""Curves as SVG that stand in a page."""

from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from atoll.pages import drawing

SVG = "{http://www.w3.org/2000/svg}"


def line(axes):
    axes.plot([0, 1, 2], [1, 3, 2], label="a < b & c")
    axes.legend()


def test_it_is_one_element_with_its_words_as_text():
    text = drawing.drawn(line, (2.0, 1.0))
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert "a < b & c" in [each.text for each in root.iter(f"{SVG}text")]
    assert (root.get("width"), root.get("height")) == ("144pt", "72pt"), "72 points are an inch"


def test_the_same_curve_is_the_same_bytes_and_another_is_not():
    first = drawing.drawn(line)
    assert drawing.drawn(line) == first
    assert drawing.drawn(lambda axes: axes.plot([0, 1], [1, 0])) != first
    assert "<dc:date>" not in first


def test_the_settings_of_others_are_left_alone():
    before = dict(mpl.rcParams)
    drawing.drawn(line)
    assert dict(mpl.rcParams) == before

    def fail(axes):
        raise ValueError("nothing to draw")

    with pytest.raises(ValueError, match="nothing to draw"):
        drawing.drawn(fail)
    assert dict(mpl.rcParams) == before

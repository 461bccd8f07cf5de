import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFont

from atoll.sampling import titles

FONT = ImageFont.load_default(titles.SIZE)


def test_a_name_stands_over_each_column():
    sheet = Image.new("RGB", (4 + 3 * 60, 50), "white")
    result = titles.headed(sheet, ["boot", "T-shirt", "an ankle boot with laces"], 4)
    head = np.asarray(result.convert("L"))[: result.height - sheet.height]
    for column in range(3):
        part = head[:, 4 + 60 * column : 60 * (column + 1)]
        assert (part < 100).any(), column
        assert (head[:, 60 * (column + 1) + 2] == 255).all()  # nothing reaches into the next one


def test_without_names_nothing_changes():
    sheet = Image.new("RGB", (10, 10))
    assert titles.headed(sheet, [], 4) is sheet


@given(st.text(min_size=1, max_size=200), st.integers(20, 200))
def test_lines_are_few_and_no_wider_than_they_may_be(name, width):
    lines = titles.wrapped(name, width, FONT)
    assert 1 <= len(lines) <= titles.LINES
    assert all(FONT.getlength(line) <= width or line == "…" for line in lines)


def test_short_names_are_whole():
    assert titles.wrapped("ankle boot", 200, FONT) == ["ankle boot"]
    assert titles.wrapped("ankle boot", 30, FONT) == ["ankle", "boot"]

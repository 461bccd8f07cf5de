"""Arrays of any kind become samples (channels, *grid), known by their contents."""

from typing import Any

import numpy as np
import pytest

from atoll.config import DataConfig
from atoll.data.pictures import PictureError
from atoll.data.samples import Sample, choose_field, label_text
from atoll.data.shaping import Shaper
from atoll.errors import DataError
from tests.data.conftest import encoded, picture

FLOAT, BYTE = np.float32, np.uint8


def shaper(example: Any, **settings: Any) -> Shaper:
    return Shaper(DataConfig(**settings), [lambda: example], "set")


@pytest.mark.parametrize(
    ("shape", "dtype", "settings", "kind", "expected"),
    [
        ((6, 8), BYTE, {}, "image", (1, 6, 8)),
        ((6, 8, 3), BYTE, {}, "image", (3, 6, 8)),
        ((6, 8, 4), BYTE, {}, "image", (3, 6, 8)),
        ((3, 6, 8), BYTE, {"layout": "first"}, "image", (3, 6, 8)),
        ((6, 8, 3), BYTE, {"size": 4, "channels": 1}, "image", (1, 4, 4)),
        ((64,), FLOAT, {}, "series", (1, 64)),
        ((2, 64), FLOAT, {}, "series", (2, 64)),
        ((64, 2), FLOAT, {"layout": "last"}, "series", (2, 64)),
        ((3, 5, 8, 8), BYTE, {}, "video", (3, 5, 8, 8)),
        ((5, 8, 8, 3), BYTE, {}, "video", (3, 5, 8, 8)),
        ((3, 5, 8, 8), FLOAT, {}, "video", (3, 5, 8, 8)),
        ((4, 8, 8), FLOAT, {}, "latent", (4, 8, 8)),
        ((8, 8), BYTE, {"kind": "series"}, "series", (8, 8)),
    ],
)
def test_kind_and_shape(
    shape: tuple[int, ...], dtype: Any, settings: dict[str, Any], kind: str, expected: tuple[int, ...]
) -> None:
    array = (np.arange(np.prod(shape), dtype=np.int64).reshape(shape) - 2).astype(dtype)
    made = shaper(array, **settings)
    assert made.kind == kind
    values = made(array).values
    assert values.shape == expected
    assert values.dtype == dtype


def test_channels_last_moves_and_does_not_reshape() -> None:
    path = np.stack([np.arange(5.0), 10 + np.arange(5.0)], axis=1)
    values = shaper(path, layout="last")(path).values
    np.testing.assert_array_equal(values, [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]])


def test_the_first_usable_example_decides_on_colour() -> None:
    examples = [lambda: b"broken", lambda: encoded(picture(5, mode="L"))]
    made = Shaper(DataConfig(), examples, "set")
    assert made(encoded(picture(5))).values.shape == (1, 8, 8)


def test_values_that_are_not_finite_are_refused() -> None:
    array = np.array([[1.0, np.nan]])
    with pytest.raises(PictureError, match="not finite"):
        shaper(np.zeros((1, 2)))(array)


@pytest.mark.parametrize(
    ("example", "settings", "problem"),
    [
        (np.zeros((2, 9)), {"size": 8}, "data.size and data.channels are for pictures"),
        (np.zeros((2, 2, 2, 2, 2)), {}, "no known kind"),
        (np.array(["a"]), {}, "give numbers"),
        (encoded(picture(1)), {"kind": "series"}, "holds pictures, not data.kind 'series'"),
    ],
)
def test_what_does_not_fit_is_told(example: Any, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        shaper(example, **settings)


def test_ids_are_of_contents_alone() -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    first = Sample("a", values, "cat", "a cat").id
    assert first == Sample("b", values.copy()).id
    assert first == Sample("c", np.asfortranarray(values)).id
    assert first != Sample("a", values.reshape(3, 1, 4)).id
    assert first != Sample("a", values.astype(np.float32)).id
    assert first != Sample("a", values + np.uint8(1)).id


def test_fields_are_found_by_usual_names_or_by_the_asked_one() -> None:
    assert choose_field(["foo", "label"], None, ("labels", "label"), "label_field") == "label"
    assert choose_field(["foo", "label"], "foo", ("label",), "label_field") == "foo"
    assert choose_field(["foo"], None, ("label",), "label_field") is None
    with pytest.raises(DataError, match="data.label_field = 'fou' is not there, only bar, foo"):
        choose_field(["foo", "bar"], "fou", ("label",), "label_field")


@pytest.mark.parametrize(
    ("value", "names", "expected"),
    [(1, ("cat", "dog"), "dog"), (7, ("cat",), "7"), (3, (), "3"), (b"cat\n", (), "cat"), (None, (), None)],
)
def test_labels_are_text(value: Any, names: tuple[str, ...], expected: str | None) -> None:
    assert label_text(value, names) == expected

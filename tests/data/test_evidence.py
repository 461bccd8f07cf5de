"""Arrays are what their names, types, ranks, sizes and values say, and what is unclear is refused."""

from typing import Any

import numpy as np
import pytest

from atoll.config import DataConfig
from atoll.data.evidence import Reading, read_as, span_of
from atoll.errors import DataError

CHANCE = np.random.default_rng(0)


def uniform(low: float, high: float, *shape: int) -> Any:
    return CHANCE.uniform(low, high, shape).astype(np.float32)


def reading(array: Any, field: str | None = None, **settings: Any) -> Reading:
    return read_as([array], field, DataConfig(**settings), "set.npz")


@pytest.mark.parametrize(
    ("array", "field", "kind", "last", "span"),
    [
        (uniform(0, 1, 16, 16, 3), "images", "image", True, (0, 1)),
        (uniform(0, 1, 16, 16), "images", "image", False, (0, 1)),
        (uniform(0, 1, 3, 16, 16), "x", "image", False, (0, 1)),
        (uniform(-1, 1, 3, 16, 16), None, "image", False, (-1, 1)),
        (uniform(0, 255, 16, 16, 3), None, "image", True, (0, 255)),
        (uniform(0, 255, 16, 16, 1), "arr_0", "image", True, (0, 255)),
        (CHANCE.integers(0, 256, (16, 16, 3)), "x", "image", True, (0, 255)),
        (CHANCE.integers(0, 2, (16, 16)).astype(bool), None, "image", False, (0, 1)),
        (CHANCE.integers(0, 2, (16, 16), dtype=np.uint8), None, "image", False, (0, 1)),
        (CHANCE.integers(0, 65536, (16, 16), dtype=np.uint16), None, "image", False, (0, 65535)),
        (CHANCE.normal(size=(4, 16, 16)), None, "latent", False, None),
        (CHANCE.normal(size=(3, 16, 16)), "x", "latent", False, None),
        (uniform(0, 1, 8, 16, 16), "x", "latent", False, None),
        (uniform(0, 1, 4, 16, 16), "latents", "latent", False, None),
        (CHANCE.normal(size=(12, 64)), None, "series", False, None),
        (uniform(0, 1, 2, 64), "x", "series", False, None),
        (uniform(0, 1, 12, 64), "signals", "series", False, None),
        (uniform(0, 1, 64, 2), "x", "series", True, None),
        (uniform(0, 1, 64), "x", "series", False, None),
        (uniform(0, 1, 3, 5, 8, 8), "images", "video", False, None),
    ],
)
def test_evidence_decides(array: Any, field: str, kind: str, last: bool, span: Any) -> None:
    decided = reading(array, field)
    assert (decided.kind, decided.last, decided.span) == (kind, last, span)
    assert decided.reasons


@pytest.mark.parametrize(
    ("array", "field", "problem"),
    [
        (
            uniform(0, 1, 16, 16),
            "x",
            r"may be grey pictures \(data.kind = 'image'\) or series \(data.kind = 'series'\); say which",
        ),
        (
            uniform(0, 1, 4, 16, 16),
            "x",
            r"may be pictures \(data.kind = 'image'\) or latents of 4 channels \(data.kind = 'latent'\)",
        ),
        (
            3 + CHANCE.normal(size=(16, 16, 3)),
            "images",
            r"may be pictures in a range .* data.range = \[black, white\].* or no pictures .* data.kind",
        ),
        (uniform(0, 20, 16, 16, 3), "images", "data.range"),
        (uniform(0, 1, 3, 16, 3), "images", "channels may come first or last; say it by data.layout"),
        (CHANCE.integers(0, 256, (20, 16, 16), dtype=np.uint8), "x", "as grey pictures give .* as video"),
        (np.array(["a"]), "x", "give numbers"),
        (np.zeros((2, 2, 2, 2, 2)), "x", "no known kind"),
    ],
)
def test_what_is_unclear_is_refused_with_the_key_that_chooses(array: Any, field: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        reading(array, field)


def test_the_recipe_has_the_last_word() -> None:
    array = 3 + CHANCE.normal(size=(16, 16, 3))
    assert reading(array, "images", range=(-2, 9)).span == (-2, 9)
    assert reading(array, "images", kind="latent").kind == "latent"
    assert reading(uniform(0, 1, 16, 16), "x", kind="series").kind == "series"
    assert reading(uniform(0, 1, 3, 16, 3), "images", layout="last").last


def test_all_examples_are_looked_at() -> None:
    dark, bright = uniform(0, 0.9, 8, 8, 3), uniform(0, 255, 8, 8, 3)
    assert read_as([dark], "images", DataConfig(), "x").span == (0, 1)
    assert read_as([dark, bright], "images", DataConfig(), "x").span == (0, 255)


def test_what_is_not_finite_does_not_decide() -> None:
    array = uniform(0, 1, 8, 8, 3)
    array[0, 0] = np.nan
    assert reading(array, "images").span == (0, 1)


@pytest.mark.parametrize(
    ("low", "high", "span"),
    [
        (0, 1, (0, 1)),
        (-1e-7, 1 + 1e-7, (0, 1)),
        (-1.001, 1.001, (-1, 1)),
        (0, 254.9, (0, 255)),
        (0, 30, None),
        (-0.2, 200, (0, 255)),
        (-5, 200, None),
        (0, 300, None),
        (-1.2, 1, None),
    ],
)
def test_spans_of_floats(low: float, high: float, span: Any) -> None:
    assert span_of(np.zeros(1), low, high) == span

"""Series as pictures: curves over the time, or a path in the plane, with axes and a scale."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

HEIGHT, WIDTH = 64, 88
LEFT, BOTTOM, EDGE = 26, 12, 3
"""Room for the numbers beside the axes, and at the other sides."""
INK, FAINT = 0, 150
SPREAD = 3.0
"""The scale reaches so many standard deviations of the data to both sides of their mean."""


def scale_of(mean: Sequence[float], std: Sequence[float]) -> tuple[float, float]:
    """The range that drawings of a dataset have in common, so that they can be compared."""
    pairs = list(zip(mean, std, strict=True))
    low = min(middle - SPREAD * spread for middle, spread in pairs)
    return float(low), float(max(middle + SPREAD * spread for middle, spread in pairs))


def draw(values: NDArray[Any], scale: tuple[float, float]) -> NDArray[np.uint8]:
    """A line drawing (height, width, 1) of one series (channels, time); what leaves the scale widens it."""
    low, high = min(scale[0], float(values.min())), max(scale[1], float(values.max()))
    image = Image.new("L", (WIDTH, HEIGHT), 255)
    canvas = ImageDraw.Draw(image)
    plane = len(values) == 2
    _axes(canvas, (low, high), (low, high) if plane else (0, values.shape[1] - 1), upward=not plane)
    if plane:  # as pens write: the second coordinate grows downwards
        canvas.line(
            list(zip(_across(values[0], low, high), _down(values[1], low, high), strict=True)), INK, 2
        )
        return np.asarray(image)[..., None]
    steps = np.linspace(LEFT, WIDTH - 1 - EDGE, values.shape[1]).tolist()
    for index, curve in enumerate(values):
        points = list(zip(steps, _down(-curve, -high, -low), strict=True))
        canvas.line(points, int(FAINT * index / len(values)), 1)
    return np.asarray(image)[..., None]


def _across(values: NDArray[Any], low: float, high: float) -> list[float]:
    return _placed(values, low, high, LEFT, WIDTH - 1 - EDGE)


def _down(values: NDArray[Any], low: float, high: float) -> list[float]:
    return _placed(values, low, high, EDGE, HEIGHT - 1 - BOTTOM)


def _placed(values: NDArray[Any], low: float, high: float, first: int, last: int) -> list[float]:
    placed: list[float] = (first + (values - low) / max(high - low, 1e-12) * (last - first)).tolist()
    return placed


def _axes(
    canvas: ImageDraw.ImageDraw, beside: Sequence[float], below: Sequence[float], *, upward: bool
) -> None:
    """Two lines and the numbers at their ends."""
    floor, right = HEIGHT - BOTTOM, WIDTH - 1 - EDGE
    canvas.line([(LEFT - 2, EDGE), (LEFT - 2, floor), (right, floor)], FAINT)
    font = ImageFont.load_default(8)
    top, bottom = (beside[1], beside[0]) if upward else (beside[0], beside[1])
    canvas.text((LEFT - 4, EDGE - 2), _short(top), INK, font, anchor="rt")
    canvas.text((LEFT - 4, floor + 1), _short(bottom), INK, font, anchor="rs")
    canvas.text((LEFT, floor + 2), _short(below[0]), INK, font, anchor="lt")
    canvas.text((right, floor + 2), _short(below[1]), INK, font, anchor="rt")


def _short(number: float) -> str:
    """At most five letters, which is what there is room for."""
    if 0.1 <= abs(number) < 99.5 or number == 0:
        return f"{number:.2g}"
    if 99.5 <= abs(number) < 999.5:
        return f"{number:.0f}"
    digits, _, power = f"{number:.0e}".partition("e")
    return f"{digits}e{int(power)}"

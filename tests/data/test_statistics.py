"""Channels are scaled by what was measured, and pictures by black and white."""

from atoll.data.parts import Facts
from atoll.data.statistics import preview, statistics


def test_a_constant_channel_is_left_unscaled() -> None:
    facts = Facts(sums=[30.0], squares=[90.0], values_per_channel=10)
    assert statistics([facts], 1) == ([3.0], [1.0])


def test_pictures_are_scaled_by_black_and_white() -> None:
    facts = Facts(sums=[30.0], squares=[90.0], values_per_channel=10)
    assert statistics([facts], 1, (0, 1)) == ([0.5], [0.5])
    assert statistics([Facts()], 2) == ([127.5] * 2, [127.5] * 2)


def test_the_preview_is_a_fit_over_all_parts() -> None:
    # One latent x and pixels 2 x + 1, seen at x = 0, 1 in one part and x = 2 in another.
    parts = [Facts(preview=[[[1.0, 1.0], [1.0, 2.0]], [[3.0], [4.0]]])]
    parts.append(Facts(preview=[[[4.0, 2.0], [2.0, 1.0]], [[10.0], [5.0]]]))
    weights = preview(parts)
    assert weights is not None
    assert [round(row[0], 9) for row in weights] == [2.0, 1.0]
    assert preview([Facts()]) is None

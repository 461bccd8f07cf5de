"""Values go to the network and back, and every kind of sample has a picture."""

import numpy as np
import pytest
import torch

from atoll.data import curves
from atoll.data.values import fit_preview, standardise, to_pixels, to_values
from atoll.runs.records import SampleFormat


def about(kind: str, dtype: str = "uint8", channels: int = 3, **more: object) -> SampleFormat:
    scale = (127.5,) * channels
    return SampleFormat(kind=kind, dtype=dtype, mean=scale, std=scale, **more)


def test_pixels_span_minus_one_to_one_and_come_back_exactly() -> None:
    stored = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    contents = about("image", channels=1)
    x = standardise(stored, contents)
    assert (x.min().item(), x.max().item()) == (-1, 1)
    torch.testing.assert_close(x, stored / 127.5 - 1)
    np.testing.assert_array_equal(to_pixels(x, contents)[0, ..., 0], stored[0, 0])


def test_channels_have_their_own_statistics() -> None:
    contents = SampleFormat(kind="series", dtype="float32", mean=(1.0, -2.0), std=(2.0, 0.5))
    stored = torch.tensor([[[1.0, 3.0], [-2.0, -1.0]]])
    x = standardise(stored, contents)
    assert x.tolist() == [[[0.0, 1.0], [0.0, 2.0]]]
    assert torch.equal(to_values(x, contents), stored)


def test_what_is_out_of_range_is_clipped() -> None:
    assert to_pixels(torch.tensor([[[[-9.0, 9.0]]]]), about("image", channels=1))[0, 0, :, 0].tolist() == [
        0,
        255,
    ]


@pytest.mark.parametrize(
    ("shape", "contents", "expected"),
    [
        ((2, 3, 8, 9), about("image"), (2, 8, 9, 3)),
        ((2, 3, 6, 8, 9), about("video"), (2, 8, 36, 3)),
        ((2, 1, 2, 8, 9), about("video", channels=1), (2, 8, 18, 1)),
        ((2, 3, 6, 8, 9), about("video", "float32"), (2, 8, 36, 3)),
        ((2, 5, 30), about("series", "float32", 5), (2, curves.HEIGHT, curves.WIDTH, 1)),
        ((2, 4, 8, 8), about("latent", "float16", 4, preview=None), (2, 8, 8, 1)),
        ((2, 4, 8, 8), about("latent", "float16", 4, preview=[[1.0] * 3] * 5), (2, 8, 8, 3)),
    ],
)
def test_every_kind_has_a_picture(
    shape: tuple[int, ...], contents: SampleFormat, expected: tuple[int, ...]
) -> None:
    pictures = to_pixels(torch.randn(shape, generator=torch.Generator().manual_seed(0)), contents)
    assert pictures.shape == expected
    assert pictures.dtype == np.uint8


def test_a_linear_preview_is_found_exactly() -> None:
    random = torch.Generator().manual_seed(0)
    latents = torch.randn(5, 4, 6, 6, generator=random)
    weights = torch.randn(5, 3, generator=random) * 20
    pixels = (latents.movedim(1, -1) @ weights[:-1] + weights[-1]).movedim(-1, 1)
    left, right = fit_preview(latents, pixels.repeat_interleave(2, 2).repeat_interleave(2, 3))
    np.testing.assert_allclose(np.linalg.solve(left, right), weights, rtol=1e-4, atol=1e-4)

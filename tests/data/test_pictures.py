"""A picture becomes pixels as a person would expect, and hostile bytes become an error."""

import contextlib
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from atoll.data import pictures
from atoll.data.pictures import PictureError
from tests.data.conftest import encoded, picture

LIMIT = 1_000_000


def decode(raw: bytes, size: int | None, channels: int | None, limit: int) -> pictures.Pixels:
    return pictures.pixels(pictures.open_picture(raw, limit), size, channels)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "JPEG", "GIF", "BMP", "TIFF"])
def test_bytes_become_channels_first_pixels(form: str) -> None:
    values = decode(encoded(picture(100, (6, 4)), form), None, None, LIMIT)
    assert values.shape == (3, 4, 6)
    assert values.dtype == np.uint8
    assert np.abs(values.astype(int) - 100).max() <= 2  # JPEG and WebP round


def test_grey_and_colour_as_asked() -> None:
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    assert decode(encoded(red), None, 1, LIMIT).shape == (1, 4, 4)
    assert decode(encoded(red), None, 1, LIMIT)[0, 0, 0] == 76  # ITU-R 601-2: 0.299 of 255
    assert decode(encoded(picture(9, mode="L")), None, 3, LIMIT)[:, 0, 0].tolist() == [9, 9, 9]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("RGBA", (4, 4), (10, 20, 30, 0)), [255, 255, 255]),
        (Image.new("RGBA", (4, 4), (0, 0, 0, 51)), [204, 204, 204]),  # a fifth of black on white
        (Image.new("LA", (4, 4), (0, 0)), [255]),
        (Image.new("1", (4, 4), 1), [255]),
    ],
    ids=["transparent", "a fifth", "grey and alpha", "one bit"],
)
def test_every_mode_ends_on_white_in_8_bits(image: Image.Image, expected: list[int]) -> None:
    assert decode(encoded(image), None, None, LIMIT)[:, 0, 0].tolist() == expected


def test_a_palette_with_transparency_ends_on_white() -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([0, 0, 255, 255, 0, 0])
    values = decode(encoded(image, transparency=0), None, None, LIMIT)
    assert values[:, 0, 0].tolist() == [255, 255, 255]


def test_exif_orientation_is_undone() -> None:
    upright = np.zeros((4, 8, 3), np.uint8)
    upright[:, :4] = 255  # white on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned: show it rotated by 90 degrees clockwise
    stored = Image.fromarray(np.rot90(upright).copy())
    values = decode(encoded(stored, "PNG", exif=exif), None, None, LIMIT)
    np.testing.assert_array_equal(values, upright.transpose(2, 0, 1))


def test_the_short_side_is_resized_and_the_centre_cropped() -> None:
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = 200  # exactly the central square
    values = decode(encoded(Image.fromarray(wide)), 5, None, LIMIT)
    assert values.shape == (1, 5, 5)
    assert np.abs(values[0].astype(int) - 200).max() <= 20  # the filter rings a little at the edges


@pytest.mark.parametrize("size", [(3, 3), (3, 200), (201, 7)])
def test_any_size_becomes_the_asked_one(size: tuple[int, int]) -> None:
    assert decode(encoded(picture(1, size)), 16, None, LIMIT).shape == (3, 16, 16)


def bomb(side: int) -> bytes:
    """A few dozen bytes that claim to be a huge picture."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = (header, b"IDAT" + zlib.compress(bytes(99)))
    lengths = [
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(lengths)


@pytest.mark.parametrize("side", [1_001, 20_000, 100_000])
def test_a_bomb_is_refused_before_it_is_unpacked(side: int) -> None:
    with pytest.raises(PictureError, match=str(LIMIT)):
        decode(bomb(side), None, None, LIMIT)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_truncated_picture_is_refused(form: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    whole = encoded(noise, form)
    with pytest.raises(PictureError):
        decode(whole[: len(whole) // 2], None, None, LIMIT)


@given(st.binary(max_size=200), st.integers(0, 60))
def test_no_bytes_raise_anything_else(noise: bytes, at: int) -> None:
    start = encoded(picture(7))[:at]
    with contextlib.suppress(PictureError):
        assert decode(start + noise, 8, 3, LIMIT).shape == (3, 8, 8)


def test_other_formats_are_not_opened() -> None:
    with pytest.raises(PictureError, match="not a readable picture"):
        decode(encoded(picture(1), "PPM"), None, None, LIMIT)


def test_a_sheet_shows_every_tile_in_its_place() -> None:
    tiles = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1).repeat(2, 1).repeat(3, 2)
    sheet = np.asarray(pictures.sheet(tiles, columns=3, margin=1))
    assert sheet.shape == (1 + 2 * 3, 1 + 3 * 4)
    assert [sheet[1 + 3 * (index // 3), 1 + 4 * (index % 3)] for index in range(6)] == [0, 1, 2, 3, 4, 255]

"""Pictures of more than 8 bits rest as they are."""

import io
import struct
import zlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from atoll.config import DataConfig
from atoll.data import deep, pictures
from atoll.data.pictures import PictureError
from atoll.data.shaping import Shaper
from tests.data.conftest import encoded, picture

CHANCE = np.random.default_rng(0)


def png16(values: NDArray[np.uint16]) -> bytes:
    """A PNG of 16 bits per channel, which Pillow does not write in colour."""
    height, width, channels = values.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = values.astype(">u2").reshape(height, -1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    chunks = [
        b"IHDR" + struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0),
        b"IDAT" + zlib.compress(raw),
        b"IEND",
    ]
    return pictures.PNG + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    )


def sixteen(*shape: int) -> NDArray[np.uint16]:
    return CHANCE.integers(0, 65536, shape, dtype=np.uint16)


def unpack(raw: bytes) -> Any:
    return deep.unpack(pictures.open_picture(raw, 10**6), raw)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_all_16_bits_of_a_png_are_read(channels: int) -> None:
    values = sixteen(5, 7, channels)
    np.testing.assert_array_equal(unpack(png16(values)), values)


def test_tiffs_of_16_bits_and_of_floats() -> None:
    values, floats = sixteen(5, 7), CHANCE.uniform(0, 1, (5, 7)).astype(np.float32)
    np.testing.assert_array_equal(unpack(encoded(Image.fromarray(values), "TIFF"))[..., 0], values)
    np.testing.assert_array_equal(unpack(encoded(Image.fromarray(floats), "TIFF"))[..., 0], floats)


def test_8_bits_are_not_deep() -> None:
    assert unpack(encoded(picture(3))) is None


def shaper(*examples: Any, field: str = "images", **settings: Any) -> Shaper:
    return Shaper(DataConfig(**settings), [partial(lambda raw: raw, raw) for raw in examples], "set", field)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (0, 255)])
def test_floats_rest_bit_for_bit(low: float, high: float) -> None:
    image = CHANCE.uniform(low, high, (8, 8, 3)).astype(np.float32)
    made = shaper(image)
    values = made(image).values
    assert (made.kind, made.span, str(values.dtype)) == ("image", (low, high), "float32")
    np.testing.assert_array_equal(values, image.transpose(2, 0, 1))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.uint16, np.float64])
def test_bytes_in_wider_types_rest_without_loss(dtype: Any) -> None:
    image = CHANCE.integers(0, 256, (8, 8, 3)).astype(dtype)
    image[0, 0] = 255
    values = shaper(image)(image).values
    np.testing.assert_array_equal(values, image.transpose(2, 0, 1))
    assert values.dtype == {np.uint16: np.uint16, np.float64: np.float32}.get(dtype, np.uint8)


def test_16_bits_rest_as_16_bits_beside_8() -> None:
    deep_one, shallow = png16(sixteen(8, 8, 3)), encoded(picture(100))
    made = shaper(deep_one)
    assert made.rest == np.uint16
    assert any("16 bits are kept" in note for note in made.notes)
    np.testing.assert_array_equal(made(deep_one).values, unpack(deep_one).transpose(2, 0, 1))
    assert (made(shallow).values == 100 * 257).all()


def test_16_bits_after_8_are_made_8_and_that_is_said() -> None:
    values = np.full((8, 8, 3), 0x8080, np.uint16)
    shaped = shaper(encoded(picture(100)))(png16(values))
    assert shaped.values.dtype == np.uint8
    assert (shaped.values == 0x80).all()
    assert shaped.remarks == ("16 bits made 8 bits, as the first picture has",)


def test_values_beyond_the_others_are_refused() -> None:
    made = shaper(np.zeros((8, 8, 3), np.float32) + 0.5)
    with pytest.raises(PictureError, match="values from 0 to 200 where others go from 0 to 1"):
        made(np.linspace(0, 200, 192).reshape(8, 8, 3))
    with pytest.raises(PictureError, match="not finite"):
        made(np.full((8, 8, 3), np.nan))


def test_resizing_grey_and_transparency_keep_the_range() -> None:
    image = np.zeros((16, 8, 4), np.float32)
    image[..., 0] = 1.0  # red, of which half is opaque
    image[..., 3] = 0.5
    values = shaper(image, kind="image", size=4)(image).values
    np.testing.assert_allclose(values[:, 0, 0], [1.0, 0.5, 0.5], atol=1e-6)
    grey = shaper(image, kind="image", channels=1)(image).values
    np.testing.assert_allclose(grey, 0.299 + 0.701 * 0.5, atol=1e-6)


def test_resizing_is_that_of_8_bits() -> None:
    image = CHANCE.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    eight = shaper(image, size=6)(image).values.astype(int)
    floats = shaper(image.astype(np.float32), size=6)(image.astype(np.float32)).values
    assert np.abs(floats - eight).max() <= 1


def test_integers_of_32_bits_are_refused() -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 10**6, np.int32)).save(file, "TIFF")
    with pytest.raises(PictureError, match="32 bits"):
        unpack(file.getvalue())


def test_floats_among_8_bits_are_taken_by_their_own_range() -> None:
    made, floats = shaper(encoded(picture(100, mode="L"))), np.full((8, 8), 0.2, np.float32)
    assert (made(encoded(Image.fromarray(floats), "TIFF")).values == 51).all()
    with pytest.raises(PictureError, match="in no range of pictures"):
        made(encoded(Image.fromarray(floats * -100), "TIFF"))

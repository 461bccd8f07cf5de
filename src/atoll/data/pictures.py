"""One picture from untrusted bytes to pixels of the asked size and channels."""

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})
FORMATS = ("PNG", "JPEG", "WEBP")
GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16"})

Pixels = NDArray[np.uint8]


class PictureError(Exception):
    """These bytes are not a picture that can be used."""


def open_picture(encoded: bytes, max_pixels: int) -> Image.Image:
    """Read a picture's header, and refuse what would be too large unpacked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of bombs at a size of its own; ours is checked below
        try:
            image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        except Image.DecompressionBombError:
            raise PictureError(f"more than {max_pixels} pixels") from None
        except Exception as error:
            raise PictureError(f"not a readable picture ({type(error).__name__})") from None
    if image.width * image.height > max_pixels:
        raise PictureError(f"{image.width} x {image.height} pixels are more than {max_pixels}")
    return image


def is_grey(encoded: bytes, max_pixels: int) -> bool:
    """Whether a picture has no colour by its header."""
    return open_picture(encoded, max_pixels).mode in GREY_MODES


def decode(encoded: bytes, size: int | None, channels: int | None, max_pixels: int) -> Pixels:
    """Bytes of a picture as (channels, height, width), upright, on white, resized and cropped."""
    image = open_picture(encoded, max_pixels)
    try:
        return arrange(ImageOps.exif_transpose(image), size, channels)
    # Pillow raises nearly anything on hostile bytes: OSError, SyntaxError, ValueError, struct.error, …
    except Exception as error:
        raise PictureError(f"broken picture ({type(error).__name__}: {error})") from None


def arrange(image: Image.Image, size: int | None, channels: int | None) -> Pixels:
    """A picture as (channels, height, width), on white, resized and cropped."""
    image = on_white(image)
    if channels is not None:
        image = image.convert("L" if channels == 1 else "RGB")
    if size is not None:
        image = crop(image, size)
    values = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))


def on_white(image: Image.Image) -> Image.Image:
    """Grey or RGB of 8 bits, with whatever is transparent on white."""
    grey = image.mode in GREY_MODES
    if image.mode in ("I", "I;16"):
        image = Image.fromarray((np.asarray(image, dtype=np.int64) // 257).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("L" if grey else "RGB")


def crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the short side to `size` and crop the centre."""
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


def sheet(tiles: NDArray[Any], columns: int, margin: int = 2) -> Image.Image:
    """Many pictures (n, height, width, channels) as one, row by row, on white."""
    count, height, width, channels = tiles.shape
    rows = -(-count // columns)
    canvas = np.full((rows * (height + margin) + margin, columns * (width + margin) + margin, channels), 255)
    for index, tile in enumerate(tiles):
        top = margin + index // columns * (height + margin)
        left = margin + index % columns * (width + margin)
        canvas[top : top + height, left : left + width] = tile
    pixels = canvas.astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)

"""One picture from untrusted bytes to pixels of the asked size and channels."""

import io
import warnings
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"})
PNG = b"\x89PNG\r\n\x1a\n"

Pixels = NDArray[np.uint8]


class PictureError(Exception):
    """These bytes are not a picture that can be used."""


def open_picture(encoded: bytes, max_pixels: int) -> Image.Image:
    """Read a picture's header, and refuse what would be too large unpacked, or is not what was written."""
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
    if encoded.startswith(PNG):
        check_png(encoded)
    return image


def check_png(encoded: bytes) -> None:
    """Refuse a PNG with a wrong checksum or without its end, which Pillow may show as something else."""
    at, kind = len(PNG), b""
    while kind != b"IEND":
        length, kind = int.from_bytes(encoded[at : at + 4], "big"), encoded[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(encoded):
            raise PictureError("broken picture (the file ends early)")
        matters = kind[:1].isupper() or kind == b"tRNS"
        if matters and zlib.crc32(encoded[at + 4 : end]) != int.from_bytes(encoded[end : end + 4], "big"):
            raise PictureError("broken picture (a checksum is wrong)")
        at = end + 4


def is_grey(image: Image.Image) -> bool:
    """Whether a picture has no colour by its header, or by its palette."""
    if image.mode == "P":
        colours = np.array(image.getpalette("RGB") or [0, 0, 1]).reshape(-1, 3)
        return bool((colours == colours[:, :1]).all())
    return image.mode in GREY_MODES


def remarks(image: Image.Image, channels: int | None) -> tuple[str, ...]:
    """What is lost of a picture by taking it as the others are."""
    lost = []
    if getattr(image, "is_animated", False):
        lost.append("animated or of several pages, the first is taken")
    if channels == 1 and not is_grey(image):
        lost.append("colour made grey")
    return tuple(lost)


def pixels(image: Image.Image, size: int | None, channels: int | None) -> Pixels:
    """A picture as (channels, height, width), upright, on white, resized and cropped."""
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

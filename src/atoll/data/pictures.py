"""One picture from untrusted bytes to an array of the asked shape."""

import io
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from atoll.config import DataConfig

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp"})
FORMATS = ("PNG", "JPEG", "WEBP")
GREY_MODES = frozenset({"1", "L", "LA", "I;16", "I", "F"})

Pixels = NDArray[np.uint8]


class PictureError(Exception):
    """These bytes are not a picture that can be used."""


class Shaper:
    """Gives every picture the size and the channels that the recipe asks for."""

    def __init__(self, config: DataConfig, examples: Iterable[Callable[[], bytes]]) -> None:
        """Where the recipe leaves the channels open, the first readable example decides."""
        self.size = config.size
        self.max_pixels = config.max_pixels
        self.channels: int | None = config.channels
        for example in examples if self.channels is None else ():
            try:
                self.channels = 1 if self._open(example()).mode in GREY_MODES else 3
                break
            except (PictureError, OSError):
                continue

    def decode(self, encoded: bytes) -> Pixels:
        """Bytes of a picture file as (channels, height, width)."""
        try:
            image = ImageOps.exif_transpose(self._open(encoded))
            return self._shape_image(image)
        except PictureError:
            raise
        # Pillow raises nearly anything on hostile bytes: OSError, SyntaxError, ValueError, struct.error, …
        except Exception as error:
            raise PictureError(f"{type(error).__name__}: {error}") from None

    def shape(self, values: NDArray[Any]) -> Pixels:
        """An array (height, width, channels) as (channels, height, width)."""
        unchanged = self.size is None or values.shape[:2] == (self.size, self.size)
        if unchanged and self.channels in (None, values.shape[-1]):
            return np.ascontiguousarray(values.transpose(2, 0, 1))
        return self._shape_image(Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values))

    def _open(self, encoded: bytes) -> Image.Image:
        """Read the header only, and refuse what would not fit."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                image = Image.open(io.BytesIO(encoded), formats=FORMATS)
            except Exception as error:
                raise PictureError(f"not a readable picture ({type(error).__name__})") from None
        if image.width * image.height > self.max_pixels:
            raise PictureError(f"{image.width} x {image.height} pixels, more than {self.max_pixels}")
        return image

    def _shape_image(self, image: Image.Image) -> Pixels:
        image = on_white(image)
        if self.channels is not None:
            image = image.convert("L" if self.channels == 1 else "RGB")
        if self.size is not None:
            image = crop(image, self.size)
        values = np.asarray(image, dtype=np.uint8)
        return np.ascontiguousarray(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))


def on_white(image: Image.Image) -> Image.Image:
    """Grey or RGB, with whatever is transparent on white."""
    if image.mode in ("I;16", "I", "F"):
        values = np.asarray(image, dtype=np.float64)
        image = Image.fromarray((values / max(values.max(), 1) * 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        grey = image.mode == "LA"
        return Image.alpha_composite(white, layer).convert("L" if grey else "RGB")
    return image.convert("L" if image.mode in GREY_MODES else "RGB")


def crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the short side to `size` and crop the centre."""
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))

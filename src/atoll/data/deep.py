"""Pictures of more than 8 bits: 16-bit files, floats, integers of any range, kept as they are."""

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from atoll.data import pictures
from atoll.data.evidence import TOLERANCE, Span, span_of
from atoll.data.pictures import PictureError
from atoll.data.samples import Array

SIXTEEN_BITS = (0.0, 65535.0)
GREY_WEIGHTS = np.array([0.299, 0.587, 0.114])
"""ITU-R 601-2, as for 8 bits."""


def unpack(image: Image.Image, encoded: bytes) -> Array | None:
    """The values (height, width, channels) of a picture that has more than 8 bits, upright; else None."""
    try:
        if image.mode in ("I;16", "I;16B", "I;16L", "I", "F"):
            values = np.asarray(ImageOps.exif_transpose(image))
            if image.mode == "I" and (values.min() < 0 or values.max() > 65535):
                raise PictureError("32 bits are in no range that pictures have; save it as 16 bits")
            return values.astype(np.float32 if image.mode == "F" else np.uint16)[..., None]
        return _both_bytes(image, encoded)
    except PictureError:
        raise
    # Pillow raises nearly anything on hostile bytes: OSError, SyntaxError, ValueError, struct.error, …
    except Exception as error:
        raise PictureError(f"broken picture ({type(error).__name__}: {error})") from None


def _both_bytes(image: Image.Image, encoded: bytes) -> NDArray[np.uint16] | None:
    """Colour of 16 bits, of which Pillow reads the upper 8: read as if turned around, it gives the lower."""
    tiles = getattr(image, "tile", [])
    raw_mode = _raw_mode(tiles[0].args) if tiles else ""
    if image.mode not in ("RGB", "RGBA") or not raw_mode.endswith((";16B", ";16L")):
        return None
    turned = raw_mode[:-1] + ("L" if raw_mode.endswith("B") else "B")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = Image.open(io.BytesIO(encoded), formats=pictures.FORMATS)
    other.tile = [tile._replace(args=_with_mode(tile.args, turned)) for tile in tiles]
    upper, lower = (np.asarray(ImageOps.exif_transpose(one)).astype(np.uint16) for one in (image, other))
    return (upper * np.uint16(256) + lower).astype(np.uint16)


def _raw_mode(args: Any) -> str:
    return str(args[0] if isinstance(args, tuple | list) else args)


def _with_mode(args: Any, mode: str) -> Any:
    return (mode, *args[1:]) if isinstance(args, tuple | list) else mode


def bits(dtype: np.dtype[Any]) -> str:
    """How deep a type is, in words."""
    return "floats" if dtype.kind == "f" else f"{8 * dtype.itemsize} bits"


def span_of_file(values: Array, rest: np.dtype[Any] | None, span: Span) -> Span:
    """Black and white of one file: of floats those of the source or, where others have none, its own."""
    if values.dtype == np.uint16:
        return SIXTEEN_BITS
    if rest is not None and rest.kind == "f":
        return span
    own = span_of(values, float(values.min()), float(values.max()))
    if own is None:
        raise PictureError(
            f"floats from {values.min():.4g} to {values.max():.4g} are in no range of pictures"
        )
    return own


def resting_type(dtype: np.dtype[Any], span: Span) -> np.dtype[Any]:
    """The smallest type in which pictures of a range lose nothing."""
    if dtype.kind in "bui" and span[0] >= 0:
        if span[1] <= 255:
            return np.dtype(np.uint8)
        if span[1] <= 65535:
            return np.dtype(np.uint16)
    return np.dtype(np.float32)


def check_values(array: Array, span: Span, *, strictly: bool) -> None:
    """Refuse what is not finite, or not in the range that all the others have."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise PictureError("holds values that are not finite")
    low, high = array.min(), array.max()
    slack = (span[1] - span[0]) * TOLERANCE if array.dtype.kind == "f" else 0
    if strictly and (low < span[0] - slack or high > span[1] + slack):
        raise PictureError(
            f"values from {low:.4g} to {high:.4g} where others go from {span[0]:g} to {span[1]:g}; "
            "say by data.range what black and white are"
        )


def rescaled(values: Array, before: Span, after: Span) -> Array:
    """Values of one range in another, exactly where nothing changes."""
    if before == after:
        return values
    scale = (after[1] - after[0]) / (before[1] - before[0])
    return (values.astype(np.float64) - before[0]) * scale + after[0]


def arrange(
    values: Array, size: int | None, channels: int | None, span: Span, rest: np.dtype[Any] | None
) -> Array:
    """(height, width, channels) as (channels, height, width), on white, grey or RGB, resized and cropped."""
    count = values.shape[-1]
    if count in (2, 4):
        values = _on_white(values, span)
    if channels == 1 and values.shape[-1] == 3:
        values = (values @ GREY_WEIGHTS)[..., None]
    elif channels == 3 and values.shape[-1] == 1:
        values = np.repeat(values, 3, axis=-1)
    if size is not None and values.shape[:2] != (size, size):
        bands = [Image.fromarray(band.astype(np.float32)) for band in np.moveaxis(values, -1, 0)]
        values = np.stack([np.asarray(pictures.crop(band, size)) for band in bands], axis=-1).clip(*span)
    if rest is not None and rest.kind == "u" and values.dtype.kind == "f":
        values = values.round()
    return np.ascontiguousarray(values.transpose(2, 0, 1).astype(rest))


def _on_white(values: Array, span: Span) -> Array:
    """Without alpha, which lies in the same range as the colours."""
    alpha = (values[..., -1:].astype(np.float64) - span[0]) / (span[1] - span[0])
    return values[..., :-1] * alpha + span[1] * (1 - alpha)

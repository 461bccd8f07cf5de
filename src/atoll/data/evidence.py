"""What arrays are, decided by evidence (names, types, ranks, sizes, values), with the reasons said."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.config import DataConfig
from atoll.data.samples import Array, Kind
from atoll.errors import DataError

NAMES: dict[Kind, frozenset[str]] = {
    "image": frozenset({"images", "image", "img", "imgs", "pictures", "picture", "pixels", "photos"}),
    "latent": frozenset({"latents", "latent", "z"}),
    "series": frozenset({"series", "signal", "signals", "audio", "waveform", "waveforms", "trajectories"}),
    "video": frozenset({"video", "videos", "frames", "clips"}),
}
"""What fields are called that hold one kind and no other."""
RANKS: dict[Kind, tuple[int, ...]] = {"image": (2, 3), "latent": (3,), "series": (1, 2), "video": (4,)}
FEW = 4
"""An axis no longer than this is one of channels."""
LONG = 16
"""An axis of time is at least so long where the other one is few."""
BRIGHT = 64.0
"""Floats that reach this and no more than 255 are pixels; up to here they may be anything."""
TOLERANCE = 1 / 510
"""How far beyond its range a value may be, as a part of it: half a step of 8 bits."""
Span = tuple[float, float]
ASKED = "data.kind says so"


@dataclass(frozen=True)
class Reading:
    """What arrays are taken for."""

    kind: Kind
    last: bool
    """Whether the channels are the last axis."""
    span: Span | None
    """Black and white of pictures."""
    reasons: tuple[str, ...]
    """Why, in words."""


def read_as(arrays: Sequence[Array], field: str | None, config: DataConfig, origin: str) -> Reading:
    """What some samples of a source are, by all that they show; DataError where that is not clear."""
    first = arrays[0]
    if first.dtype.kind not in "buif":
        raise DataError(f"{origin} holds {first.dtype}; give numbers")
    low, high = _extent(arrays)
    kind, why = kind_of(first, low, high, field, origin) if config.kind == "auto" else (config.kind, ASKED)
    reasons = [f"{KINDS[kind]}: {why}"]
    span = None
    if kind == "image":
        span = config.range or _span_or_refuse(first, low, high, origin)
        source = "data.range says so" if config.range else f"values go from {low:.4g} to {high:.4g}"
        if first.dtype != np.uint8 or span != (0, 255):
            reasons.append(f"black is {span[0]:g} and white {span[1]:g}: {source}")
    last = config.layout == "last"
    if config.layout == "auto":
        last = channels_last(first, kind, origin)
        if kind == "series" and last:
            reasons.append(f"channels last: {first.shape[1]} are few beside {first.shape[0]} of time")
    return Reading(kind, last, span, tuple(reasons))


KINDS: dict[Kind, str] = {"image": "pictures", "latent": "latents", "series": "series", "video": "video"}


def kind_of(array: Array, low: float, high: float, field: str | None, origin: str) -> tuple[Kind, str]:
    """What an array is, and why."""
    named = next((kind for kind, names in NAMES.items() if field and field.lower() in names), None)
    if named is not None and array.ndim in RANKS[named]:
        return named, f"the field is called '{field}'"
    what = f"{array.dtype} of shape {array.shape}"
    if array.dtype in (np.uint8, np.uint16, np.bool_) and array.ndim in (2, 3, 4):
        return ("video" if array.ndim == 4 else "image"), f"{what} is how pixels are stored"
    if array.ndim in (1, 4):
        return ("series" if array.ndim == 1 else "video"), f"{what} can be nothing else"
    values = f"values from {low:.4g} to {high:.4g}"
    if array.ndim == 2:
        if min(array.shape) <= FEW:
            return "series", f"{what} has {min(array.shape)} channels"
        if span_of(array, low, high) is None:
            return "series", f"{values} are not those of pictures"
        raise _unclear(origin, what, values, ("image", "grey pictures"), ("series", "series"))
    if array.ndim == 3:
        channels = _channels(array.shape)
        if channels is None or span_of(array, low, high) is None:
            return "latent", f"{what} with {values} is not that of pictures"
        if channels in (1, 3):
            return "image", f"{channels} channels with {values} are those of pictures"
        latents: tuple[Kind, str] = ("latent", f"latents of {channels} channels")
        raise _unclear(origin, what, values, ("image", "pictures"), latents)
    raise DataError(
        f"{origin} holds samples of shape {array.shape} and type {array.dtype}, which is no known kind; "
        "give pictures, (C, T) series or (C, T, H, W) video"
    )


def span_of(array: Array, low: float, high: float) -> Span | None:
    """Black and white of pictures with such values; None if they are none that pictures usually have."""
    if array.dtype.kind in "bui":
        if low < 0:
            return None
        return (0, 1) if high <= 1 else (0, 255) if high <= 255 else (0, 65535) if high <= 65535 else None
    if high <= 1 + TOLERANCE:
        return (0, 1) if low >= -TOLERANCE else (-1, 1) if low >= -1 - 2 * TOLERANCE else None
    return (0, 255) if low >= -0.5 and BRIGHT <= high <= 255.5 else None


def _span_or_refuse(array: Array, low: float, high: float, origin: str) -> Span:
    span = (0.0, 65535.0) if array.dtype == np.uint16 and high > 1 else span_of(array, low, high)
    if span is None:
        raise DataError(
            f"{origin} holds {array.dtype} from {low:.4g} to {high:.4g}, which may be pictures in a range of "
            "their own (say it by data.range = [black, white]) or no pictures (say it by data.kind = "
            "'latent' or 'series')"
        )
    return span


def channels_last(array: Array, kind: Kind, origin: str) -> bool:
    """Whether the channels are the last axis, judging by how many there usually are."""
    if kind == "series":
        return array.ndim == 2 and array.shape[1] <= FEW and array.shape[0] >= LONG
    if array.ndim < 3:
        return False
    if kind == "image":
        first, last = array.shape[0], array.shape[-1]
        for usual in ((1, 3), (2, 4)):
            if first in usual and last in usual:
                raise DataError(
                    f"{origin} holds pictures of shape {array.shape}: channels may come first or last; say "
                    "it by data.layout = 'first' or 'last'"
                )
            if first in usual or last in usual:
                return last in usual
        raise DataError(
            f"{origin} holds {array.dtype} of shape {array.shape}, in which no axis has 1 to 4 channels; "
            "as grey pictures give (H, W) each, as video (1, T, H, W)"
        )
    few = (1, 2, 3, 4)
    return array.shape[-1] in few and array.shape[0] not in few


def _channels(shape: Sequence[int]) -> int | None:
    """How many channels a picture of this shape would have; None if it cannot be one."""
    for count in (3, 1, 4):
        if count in (shape[0], shape[-1]):
            return count
    return None


def _extent(arrays: Sequence[Array]) -> Span:
    """The lowest and the highest value that is finite."""
    finite = [array[np.isfinite(array)] for array in arrays]
    lows = [float(values.min()) for values in finite if values.size]
    highs = [float(values.max()) for values in finite if values.size]
    return min(lows, default=0.0), max(highs, default=0.0)


def _unclear(
    origin: str, what: str, values: str, first: tuple[Kind, str], second: tuple[Kind, str]
) -> DataError:
    (one, as_one), (two, as_two) = first, second
    return DataError(
        f"{origin} holds {what} with {values}, which may be {as_one} (data.kind = '{one}') or {as_two} "
        f"(data.kind = '{two}'); say which"
    )

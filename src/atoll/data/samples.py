"""One sample: what it is, how it is known, and how arrays and bytes of any kind become one."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from atoll.config import DataConfig
from atoll.data import pictures
from atoll.errors import DataError

Kind = Literal["image", "series", "video", "latent"]
Array = NDArray[Any]

SAMPLE_FIELDS = (
    "images",
    "image",
    "samples",
    "sample",
    "x",
    "data",
    "arr_0",
    "jpg",
    "jpeg",
    "png",
    "webp",
    "npy",
)
LABEL_FIELDS = ("labels", "label", "y", "class", "cls")
CAPTION_FIELDS = ("captions", "caption", "text", "txt", "prompt")


@dataclass(frozen=True)
class Sample:
    """One sample as the run will see it."""

    name: str
    """Where it came from, for people."""
    values: Array
    """(channels, *grid), uint8 or float32."""
    label: str | None = None
    caption: str | None = None

    @cached_property
    def id(self) -> bytes:
        """The sha256 of its values, so that equal samples have equal ids wherever they come from."""
        head = f"{self.values.dtype} {self.values.shape} ".encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.values).tobytes()).digest()


@dataclass(frozen=True)
class Skipped:
    """A sample that could not be used, and why."""

    name: str
    reason: str
    unknown: bool = False
    """Whether more samples than can be counted are lost with it."""


class Source(Protocol):
    """Samples in a fixed order, in pieces that can be read independently and from any position."""

    kind: Kind
    class_names: tuple[str, ...]
    """Labels in their order where the source knows it; else empty, and labels are sorted."""
    rows: int | None
    """How many samples there are, where that is known without reading them."""

    @property
    def pieces(self) -> int:
        """Into how many pieces the source falls."""
        ...

    @property
    def identity(self) -> str:
        """A digest that changes when the samples do."""
        ...

    def piece_identity(self, piece: int) -> str:
        """What changes when the samples of one piece do."""
        ...

    def read(self, piece: int, start: int = 0) -> Iterator[Sample | Skipped]:
        """The samples of one piece, beginning at position `start` of it."""
        ...


class Shaper:
    """Turns whatever a source holds, bytes of a picture or an array, into values as the recipe asks.

    What the recipe leaves open (kind, layout, channels) the first usable example decides, once and for all
    pieces of the source.
    """

    def __init__(self, config: DataConfig, examples: Iterable[Callable[[], Any]], origin: str) -> None:
        self.size, self.channels, self.max_pixels = config.size, config.channels, config.max_pixels
        self.kind: Kind = "image" if config.kind == "auto" else config.kind
        self.last = config.layout == "last"
        self.origin = origin
        for example in examples:
            try:
                raw = example()
                self._learn(raw, config)
            except (pictures.PictureError, OSError):
                continue
            break

    def _learn(self, raw: Any, config: DataConfig) -> None:
        if isinstance(raw, bytes):
            if config.kind not in ("auto", "image"):
                raise DataError(
                    f"{self.origin} holds pictures, not data.kind '{config.kind}'; leave that out"
                )
            if self.channels is None:
                self.channels = 1 if pictures.is_grey(raw, self.max_pixels) else 3
            return
        array = np.asarray(raw)
        if config.kind == "auto":
            self.kind = kind_of(array, self.origin)
        if config.layout == "auto":
            self.last = channels_last(array, self.kind)
        if self.kind != "image" and (self.size is not None or self.channels is not None):
            raise DataError(
                f"data.size and data.channels are for pictures, but {self.origin} holds arrays of "
                f"{array.dtype} {array.shape}, taken for {self.kind}; leave them out, or set data.kind"
            )

    def values(self, raw: Any) -> Array:
        """What the network will see, (channels, *grid), or PictureError."""
        if isinstance(raw, bytes):
            return pictures.decode(raw, self.size, self.channels, self.max_pixels)
        array = np.asarray(raw)
        if self.kind == "image":
            return self._picture(array)
        return self._array(array)

    def _picture(self, array: Array) -> Array:
        if array.dtype != np.uint8 or array.ndim not in (2, 3):
            raise pictures.PictureError(f"a picture is uint8 of rank 2 or 3, not {array.dtype} {array.shape}")
        if array.ndim == 2:
            array = array[..., None]
        elif not self.last:
            array = array.transpose(1, 2, 0)
        if array.shape[-1] not in (1, 2, 3, 4):
            raise pictures.PictureError(f"a picture has 1 to 4 channels, not {array.shape[-1]}")
        plain = array.shape[-1] in (1, 3) and self.channels in (None, array.shape[-1])
        if plain and (self.size is None or array.shape[:2] == (self.size, self.size)):
            return np.ascontiguousarray(array.transpose(2, 0, 1))
        image = Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[-1] == 1 else array))
        return pictures.arrange(image, self.size, self.channels)

    def _array(self, array: Array) -> Array:
        rank = {"series": 2, "latent": 3, "video": 4}[self.kind]
        if array.ndim == rank - 1 and self.kind == "series":
            array = array[None]
        elif self.last:
            array = np.moveaxis(array, -1, 0)
        if array.ndim != rank:
            raise pictures.PictureError(f"shape {array.shape} is not that of {self.kind}")
        if array.dtype != np.uint8:
            array = array.astype(np.float32)
            if not np.isfinite(array).all():
                raise pictures.PictureError("holds values that are not finite")
        return np.ascontiguousarray(array)


def kind_of(array: Array, origin: str) -> Kind:
    """What an array is, by its type and rank."""
    if array.dtype.kind not in "buif":
        raise DataError(f"{origin} holds {array.dtype}; give numbers")
    byte = array.dtype == np.uint8
    kinds: dict[int, Kind] = (
        {2: "image", 3: "image", 4: "video"} if byte else {1: "series", 2: "series", 3: "latent", 4: "video"}
    )
    if array.ndim not in kinds:
        raise DataError(
            f"{origin} holds samples of shape {array.shape} and type {array.dtype}, which is no known kind; "
            "give uint8 pictures, (C, T) series or (C, T, H, W) video"
        )
    return kinds[array.ndim]


def channels_last(array: Array, kind: Kind) -> bool:
    """Whether the channels are the last axis, judging by how many there usually are."""
    if kind == "series" or array.ndim < 3:
        return False
    few = (1, 2, 3, 4)
    return array.shape[-1] in few and not (kind != "image" and array.shape[0] in few)


def choose_field(names: Sequence[str], asked: str | None, usual: Sequence[str], key: str) -> str | None:
    """The field that was asked for, or the first of the usual names that is there."""
    if asked is not None and asked not in names:
        raise DataError(
            f"data.{key} = '{asked}' is not there, only {', '.join(sorted(names))}; name one of these"
        )
    return asked if asked is not None else next((name for name in usual if name in names), None)


def label_text(value: Any, class_names: Sequence[str] = ()) -> str | None:
    """A label as text; numbers are names where the source has names for them."""
    if value is None:
        return None
    if isinstance(value, int | np.integer) and 0 <= int(value) < len(class_names):
        return class_names[int(value)]
    text = value.decode() if isinstance(value, bytes) else str(value)
    return text.strip()

"""One sample: what it is, how it is known, and where it comes from."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

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
    "gif",
    "bmp",
    "tif",
    "tiff",
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
    """(channels, *grid), uint8, uint16 or float32."""
    label: str | None = None
    caption: str | None = None
    remarks: tuple[str, ...] = ()
    """What was lost of it on the way."""

    @cached_property
    def id(self) -> bytes:
        """The sha256 of its values, so that equal samples have equal ids wherever they come from."""
        head = f"{self.values.dtype} {self.values.shape} ".encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.values).tobytes()).digest()


@dataclass(frozen=True)
class Shaped:
    """Values as they will rest, and what was lost on the way to them."""

    values: Array
    remarks: tuple[str, ...] = ()


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
    span: tuple[float, float] | None
    """Black and white of pictures, as they rest."""
    notes: tuple[str, ...]
    """What was decided about the source, and why."""
    ignored: Mapping[str, int]
    """How many files of which ending were left out."""

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


def choose_field(names: Sequence[str], field: str | None, usual: Sequence[str], key: str) -> str | None:
    """The field that was asked for, or the first of the usual names that is there."""
    if field is not None and field not in names:
        raise DataError(
            f"data.{key} = '{field}' is not there, only {', '.join(sorted(names))}; name one of these"
        )
    return field if field is not None else next((name for name in usual if name in names), None)


def label_text(value: Any, class_names: Sequence[str] = ()) -> str | None:
    """A label as text; numbers are names where the source has names for them."""
    if value is None:
        return None
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    if isinstance(value, int | np.integer) and 0 <= int(value) < len(class_names):
        return class_names[int(value)]
    text = value.decode() if isinstance(value, bytes) else str(value)
    return text.strip()

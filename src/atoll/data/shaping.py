"""Whatever a source holds, bytes of a picture or an array, as values of one shape and type."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from PIL import Image

from atoll.config import DataConfig
from atoll.data import deep, evidence, pictures
from atoll.data.evidence import Span
from atoll.data.samples import Array, Kind, Shaped
from atoll.errors import DataError

EXAMPLES = 64
"""At most so many samples are looked at to find out what the source holds."""
EIGHT_BITS = (0.0, 255.0)


class Shaper:
    """Turns what a source holds into values as the recipe asks.

    What the recipe leaves open (kind, layout, range, channels, depth) the first usable examples decide, once
    and for all pieces of the source; `notes` says what was decided and why.
    """

    def __init__(
        self,
        config: DataConfig,
        examples: Iterable[Callable[[], Any]],
        origin: str,
        field: str | None = None,
    ) -> None:
        self.size, self.channels, self.max_pixels = config.size, config.channels, config.max_pixels
        self.kind: Kind = "image" if config.kind == "auto" else config.kind
        self.last = config.layout == "last"
        self.span: Span | None = EIGHT_BITS if self.kind == "image" else None
        """Black and white of pictures, as they rest."""
        self.rest: np.dtype[Any] | None = np.dtype(np.uint8) if self.kind == "image" else None
        """How pictures rest."""
        self.notes: tuple[str, ...] = ()
        self.origin, self._checked = origin, config.range is None
        self._learn(_usable(examples), config, field)

    def _learn(self, examples: Iterable[Any], config: DataConfig, field: str | None) -> None:
        arrays: list[Array] = []
        for raw in examples:
            if not isinstance(raw, bytes):
                arrays.append(np.asarray(raw))
            elif not arrays:
                try:
                    image = pictures.open_picture(raw, self.max_pixels)
                    unpacked = deep.unpack(image, raw)
                except pictures.PictureError:
                    continue
                self._learn_picture(image, unpacked, config)
                return
        if arrays:
            self._learn_arrays(arrays, config, field)

    def _learn_picture(self, image: Image.Image, unpacked: Array | None, config: DataConfig) -> None:
        """The first picture decides on colour and depth."""
        if config.kind not in ("auto", "image"):
            raise DataError(f"{self.origin} holds pictures, not data.kind '{config.kind}'; leave that out")
        self.kind = "image"
        if self.channels is None:
            self.channels = 1 if pictures.is_grey(image) else 3
            colour = "grey" if self.channels == 1 else "RGB"
            self.notes += (f"{colour}: the first picture is (data.channels overrules it)",)
        if unpacked is not None:
            self.span = config.range or evidence.read_as([unpacked], "image", config, self.origin).span
            self.rest = unpacked.dtype
            self.notes += (f"{deep.bits(self.rest)} are kept: the first picture has them",)

    def _learn_arrays(self, arrays: list[Array], config: DataConfig, field: str | None) -> None:
        reading = evidence.read_as(arrays, field, config, self.origin)
        self.kind, self.last, self.span = reading.kind, reading.last, reading.span
        self.notes += reading.reasons
        self.rest = None if self.span is None else deep.resting_type(arrays[0].dtype, self.span)
        if self.kind != "image" and (self.size is not None or self.channels is not None):
            raise DataError(
                f"data.size and data.channels are for pictures, but {self.origin} holds arrays of "
                f"{arrays[0].dtype} {arrays[0].shape}, taken for {self.kind}; leave out or set data.kind"
            )

    def __call__(self, raw: Any) -> Shaped:
        """What the network will see, (channels, *grid), and what was done to it; or PictureError."""
        if isinstance(raw, bytes):
            return self._decoded(raw)
        array = np.asarray(raw)
        return Shaped(self._picture(array) if self.kind == "image" else self._array(array))

    def _decoded(self, raw: bytes) -> Shaped:
        image = pictures.open_picture(raw, self.max_pixels)
        remarks, unpacked = pictures.remarks(image, self.channels), deep.unpack(image, raw)
        if unpacked is None and self.rest == np.uint8:
            return Shaped(pictures.pixels(image, self.size, self.channels), remarks)
        assert self.span is not None
        if unpacked is None:
            unpacked, span = pictures.pixels(image, None, None).transpose(1, 2, 0), EIGHT_BITS
        else:
            span = deep.span_of_file(unpacked, self.rest, self.span)
            deep.check_values(unpacked, span, strictly=self._checked)
            if self.rest == np.uint8:
                remarks += (f"{deep.bits(unpacked.dtype)} made 8 bits, as the first picture has",)
        values = deep.rescaled(unpacked, span, self.span)
        return Shaped(deep.arrange(values, self.size, self.channels, self.span, self.rest), remarks)

    def _picture(self, array: Array) -> Array:
        assert self.span is not None
        if array.ndim not in (2, 3) or array.dtype.kind not in "buif":
            raise pictures.PictureError(f"a picture has rank 2 or 3, not {array.dtype} {array.shape}")
        if array.ndim == 2:
            array = array[..., None]
        elif not self.last:
            array = array.transpose(1, 2, 0)
        if array.shape[-1] not in (1, 2, 3, 4):
            raise pictures.PictureError(f"a picture has 1 to 4 channels, not {array.shape[-1]}")
        deep.check_values(array, self.span, strictly=self._checked)
        if self.rest != np.uint8 or array.dtype != np.uint8 or self.span != EIGHT_BITS:
            return deep.arrange(array, self.size, self.channels, self.span, self.rest)
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


def _usable(examples: Iterable[Callable[[], Any]]) -> Iterable[Any]:
    """The examples that can be read."""
    for _, example in zip(range(EXAMPLES), examples, strict=False):
        try:
            yield example()
        except (pictures.PictureError, OSError):
            continue

"""Pictures of samples: one each, and a grid of them with the colours of those who made them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from atoll.data import store
from atoll.data.latents import decode_samples
from atoll.runs.records import SampleFormat
from atoll.sampling.provenance import PALETTE

GAP = 4
"""Pixels between the pictures of a grid."""


def to_pixels(x_0: torch.Tensor, contents: SampleFormat) -> NDArray[np.uint8]:
    """A picture (n, height, width, channels) of each sample; latents go through their autoencoder."""
    if contents.autoencoder is None:
        return store.to_pixels(x_0, contents)
    decoded = decode_samples(x_0, contents, str(x_0.device))
    scale = (127.5,) * decoded.shape[1]
    plain = SampleFormat(kind="image" if decoded.ndim == 4 else "video", dtype="uint8", mean=scale, std=scale)
    return store.to_pixels(decoded, plain)


def to_preview(x_0: torch.Tensor, contents: SampleFormat) -> NDArray[np.uint8]:
    """The same at once: latents by the linear map to pixels instead of their autoencoder."""
    return store.to_pixels(x_0, contents)


def to_values(x_0: torch.Tensor, contents: SampleFormat) -> NDArray[np.float32]:
    """Samples in the unit of the data that they are like."""
    values: NDArray[np.float32] = store.to_values(x_0, contents).cpu().numpy()
    return values


def described(about: Mapping[str, str]) -> PngInfo:
    """What a picture says of itself, as text inside its file."""
    information = PngInfo()
    for key, value in about.items():
        information.add_itxt(key, value)
    return information


def picture_name(index: int) -> str:
    """The file of one sample."""
    return f"sample-{index:05d}.png"


def picture(values: NDArray[np.uint8]) -> Image.Image:
    """One picture (height, width, channels)."""
    return Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)


def grid(pixels: NDArray[np.uint8], experts: Sequence[int] | None = None, columns: int = 0) -> Image.Image:
    """One picture of many, about square, each with a line in the colour of its expert under it."""
    count, height, width, _ = pixels.shape
    columns = columns or max(1, round(count**0.5))
    zoom = max(1, round(56 / max(height, width)))
    mark, gap = (3, GAP) if experts is not None else (0, 2)
    cell_w, cell_h = width * zoom + gap, height * zoom + gap + mark
    sheet = Image.new("RGB", (columns * cell_w + gap, -(-count // columns) * cell_h + gap), "white")
    for index, values in enumerate(pixels):
        shown = picture(values).resize((width * zoom, height * zoom), Image.Resampling.NEAREST)
        x, y = gap + index % columns * cell_w, gap + index // columns * cell_h
        sheet.paste(shown, (x, y))
        if experts is not None:
            sheet.paste(
                PALETTE[experts[index] % len(PALETTE)],
                (x, y + height * zoom, x + width * zoom, y + height * zoom + mark),
            )
    return sheet

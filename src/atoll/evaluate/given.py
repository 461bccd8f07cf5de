"""A picture or array from a file as a sample of a run, and what it says of itself."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from atoll.data import pictures
from atoll.data.latents import open_autoencoder
from atoll.data.listing import PICTURES
from atoll.data.values import standardise
from atoll.errors import DataError
from atoll.runs import Run
from atoll.sampling.opening import contents_of

OWN = ("seed", "index", "expert", "strategy", "class", "prompt")
"""What a picture of ours says of itself."""


def read(run: Run, path: Path) -> Tensor:
    """The sample in a file as networks see it, (1, channels, *grid)."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; give a picture, or a .npy of one sample")
    if path.suffix.lower() in PICTURES:
        return picture(run, path.read_bytes(), str(path))
    return _shaped(run, _array(path), str(path))


def _shaped(run: Run, x_0: Tensor, name: str) -> Tensor:
    shape = tuple(run.partition.contents.shape)
    if tuple(x_0.shape) not in (shape, (1, *shape)):
        raise DataError(f"{name} holds {tuple(x_0.shape)}, but samples of {run.config.name} are {shape}")
    return x_0.reshape(1, *shape)


def values(run: Run, numbers: Any, name: str) -> Tensor:
    """Numbers in the unit of the data as networks see them, (1, channels, *grid)."""
    try:
        stored = torch.tensor(numbers, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # ragged, or no numbers
        raise DataError(f"{name} is no array of numbers; give lists of equal length") from None
    if not bool(stored.isfinite().all()):
        raise DataError(f"{name} holds values that are not finite; give a sample")
    return standardise(_shaped(run, stored, name), contents_of(run))


def picture(run: Run, content: bytes, name: str, most: int | None = None) -> Tensor:
    """The bytes of a picture as a sample: of the run's size, through its autoencoder where it has one.

    It may have as many pixels as one of the data, or at `most` so many.
    """
    contents = contents_of(run)
    latent = contents.autoencoder is not None
    if contents.kind != "image" and not latent:
        raise DataError(f"samples of {run.config.name} are no pictures but {contents.kind}; give the numbers")
    channels: int | None = run.config.data.channels
    side = run.config.data.size
    if not latent:
        shape = run.partition.contents.shape
        channels, side = shape[0], shape[1] if shape[1] == shape[2] else None
    pixels = torch.tensor(_pixels(content, name, side, channels, most or run.config.data.max_pixels))[None]
    if not latent:
        return _shaped(run, pixels.float() / 127.5 - 1, name)  # whatever the unit at rest
    assert contents.autoencoder is not None
    encoded = open_autoencoder(contents.autoencoder).encode(pixels)
    return _shaped(run, standardise(encoded, contents), name)


def _pixels(
    content: bytes, name: str, side: int | None, channels: int | None, most: int
) -> NDArray[np.uint8]:
    try:
        image = pictures.open_picture(content, most)
        return pictures.pixels(image, side, channels)
    except pictures.PictureError as error:
        raise DataError(f"{name}: {error}; give a picture that can be read") from None


def _array(path: Path) -> Tensor:
    """Numbers as `atoll sample` writes them, as networks see samples."""
    try:
        values = torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float32))
    except Exception:  # numpy raises nearly anything on hostile bytes
        raise DataError(f"{path} is neither a picture nor a .npy of numbers; give one of these") from None
    if not bool(values.isfinite().all()):
        raise DataError(f"{path} holds values that are not finite; give a sample")
    return values


def claims(path: Path) -> dict[str, Any]:
    """What a picture that Atoll wrote says of itself: a claim, since anybody may write it."""
    if path.suffix.lower() != ".png":
        return {}
    with Image.open(path, formats=("PNG",)) as image:
        texts = {key: str(value) for key, value in image.info.items() if isinstance(value, str)}
    return {key: texts[key] for key in OWN if key in texts} if texts.get("Software") == "Atoll" else {}

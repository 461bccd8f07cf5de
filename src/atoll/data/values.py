"""Values as they are stored, as networks see them, and as people see them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data import curves
from atoll.runs.records import SampleFormat

FRAMES = 4
"""Frames that stand for a video."""


def standardise(stored: Tensor, contents: SampleFormat) -> Tensor:
    """Stored values as a network sees them: (value - mean) / std by channel, so pixels in [-1, 1]."""
    mean, std = (_per_channel(each, stored) for each in (contents.mean, contents.std))
    return stored.to(torch.float32).sub(mean).div_(std)


def to_values(x: Tensor, contents: SampleFormat) -> Tensor:
    """The inverse of `standardise`, in float32."""
    mean, std = (_per_channel(each, x) for each in (contents.mean, contents.std))
    return x.detach().to(torch.float32) * std + mean


def in_pixels(stored: Tensor, span: tuple[float, float]) -> Tensor:
    """Pictures at rest in the unit of 8 bits, without rounding: black is 0 and white 255."""
    if stored.dtype == torch.uint8 and tuple(span) == (0, 255):
        return stored
    return (stored.to(torch.float32) - span[0]) * (255 / (span[1] - span[0]))


def to_pixels(x: Tensor, contents: SampleFormat) -> NDArray[np.uint8]:
    """A picture (n, height, width, channels) of each sample, for people.

    Images are themselves. Of a video some frames stand side by side; a series is drawn as curves, or as a
    path in the plane if it has two channels, on the scale of the data; latents are shown by the linear
    preview fitted to them.
    """
    values = to_values(x, contents).cpu()
    if contents.kind == "image":
        values = (x.detach().to("cpu", torch.float32) + 1) * 127.5  # whatever the unit at rest
    if contents.kind == "series":
        scale = curves.scale_of(contents.mean, contents.std)
        return np.stack([curves.draw(sample.numpy(), scale) for sample in values])
    if contents.kind == "video" and contents.dtype != "uint8":
        values = _spread(values)
    if contents.kind == "latent":
        values = _preview(values, contents)
    if values.ndim == 5:
        chosen = torch.linspace(0, values.shape[2] - 1, min(FRAMES, values.shape[2])).round().long()
        values = torch.cat([values[:, :, frame] for frame in chosen], dim=-1)
    channels = values.shape[1] if values.shape[1] in (1, 3) else 1
    pixels = values[:, :channels].round().clamp(0, 255).to(torch.uint8)
    return pixels.movedim(1, -1).contiguous().numpy()


def fit_preview(latents: Tensor, pixels: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The normal equations of the linear map from latents to the pixels that they stand for."""
    small = torch.nn.functional.interpolate(pixels.to(torch.float32), size=latents.shape[2:], mode="area")
    known = latents.movedim(1, -1).flatten(0, -2).double().numpy()
    known = np.concatenate([known, np.ones((len(known), 1))], axis=1)
    seen = small.movedim(1, -1).flatten(0, -2).double().numpy()
    return known.T @ known, known.T @ seen


def _preview(latents: Tensor, contents: SampleFormat) -> Tensor:
    if contents.preview is None:
        return _spread(latents)
    weights = torch.tensor(contents.preview, dtype=torch.float32)
    pixels = latents.movedim(1, -1) @ weights[:-1] + weights[-1]
    return pixels.movedim(-1, 1)


def _spread(values: Tensor) -> Tensor:
    """Whatever range there is, sample by sample, over that of pixels."""
    flat = values.flatten(1)
    low, high = flat.min(dim=1).values, flat.max(dim=1).values
    shape = (-1, *[1] * (values.ndim - 1))
    return (values - low.reshape(shape)) / (high - low).clamp(min=1e-12).reshape(shape) * 255


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    statistics = torch.tensor(values, dtype=torch.float32, device=like.device)
    return statistics.reshape(1, -1, *[1] * (like.ndim - 2))

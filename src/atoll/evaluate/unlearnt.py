"""What convolutions with random weights see of samples: edges, patches and shapes, learnt from nobody.

A few samples are compared by it without labels or anybody's model. Pixels see mostly how bright a sample is:
by them a choice was careful where a classifier was not (docs/results.md).
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.evaluate.distances import in_parts

WIDTHS = (32, 64, 64)
"""Channels of the layers. Each halves the grid."""
KERNELS = {1: 5, 2: 3, 3: 3}
"""Points along an axis that a layer sees, by the number of axes."""
CELLS = {1: 4, 2: 2, 3: 2}
"""Into so many along each axis what a layer sees is averaged."""
SIDE = 64
"""Larger grids are averaged to this first: costs must not grow with pictures."""
ROWS = 250
"""Samples that are seen at once."""
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SHRINK: dict[int, Callable[..., Tensor]] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}
HALVE: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class Unlearnt:
    """Convolutions with weights that are drawn once, the same for everybody: rows of features of samples."""

    def __init__(self, shape: Sequence[int]) -> None:
        channels, *grid = shape
        self._axes, source = len(grid), torch.Generator().manual_seed(0)
        self._grids = grids(grid)
        kernel = (KERNELS[self._axes],) * self._axes
        inputs = (channels, *WIDTHS)
        self._weights = [
            torch.randn(wide, narrow, *kernel, generator=source) * math.sqrt(2 / (narrow * math.prod(kernel)))
            for narrow, wide in zip(inputs, WIDTHS, strict=False)
        ]

    @torch.inference_mode()
    def __call__(self, x_0: Tensor) -> Tensor:
        """Rows of features, of all layers beside one another."""
        return torch.cat([self._rows(part) for part in in_parts(x_0.float(), ROWS)])

    def _rows(self, x: Tensor) -> Tensor:
        cells = CELLS[self._axes]
        x = shrunk(x, self._grids[0])
        layers = []
        for weight, halved in zip(self._weights, self._grids[1:], strict=True):
            seen = CONVOLVE[self._axes](x, weight, padding="same").relu()
            x = shrunk(seen, halved)
            layers.append(shrunk(x, [min(cells, side) for side in halved]).flatten(1))
        return torch.cat(layers, 1)


def shrunk(x: Tensor, sides: Sequence[int]) -> Tensor:
    """Means of the fields of a coarser grid; where each is two wide, in a third of the time."""
    before = x.shape[2:]
    if tuple(before) == tuple(sides):
        return x
    if all(side == 2 * half for side, half in zip(before, sides, strict=True)):
        return HALVE[len(sides)](x, 2)
    return SHRINK[len(sides)](x, sides)


def grids(grid: Sequence[int]) -> list[list[int]]:
    """What the first layer sees, and what is left after each."""
    sides = [[min(side, SIDE) for side in grid]]
    for _ in WIDTHS:
        sides.append([max(1, side // 2) for side in sides[-1]])
    return sides


def flops(shape: Sequence[int]) -> int:
    """Floating-point operations for one sample: two for each weight at each point."""
    channels, *grid = shape
    points = [math.prod(sides) for sides in grids(grid)[:-1]]
    inputs = (channels, *WIDTHS)
    kernel = KERNELS[len(grid)] ** len(grid)
    weights = [narrow * wide * kernel for narrow, wide in zip(inputs, WIDTHS, strict=False)]
    return 2 * sum(at * number for at, number in zip(points, weights, strict=True))

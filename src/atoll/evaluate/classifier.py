"""The classifier whose last features distances are measured on: trained on the data's own labels."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.errors import DataError
from atoll.evaluate import distances
from atoll.evaluate.reference import Real
from atoll.flow import draws
from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.runs import digest, read_json, replacing, write_json
from atoll.runs.records import SampleFormat

WIDTH, FEATURES, SIDE, POOLED = 32, 64, 64, 7
STEPS, BATCH, RATE = 1500, 64, 2e-3
HELD_OUT = 0.1
CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
POOLS: dict[int, Any] = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


class Classifier(nn.Module):
    """Two convolutions and two layers; what the last one sees is the features."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        channels, *grid = shape
        self.grid = tuple(min(length, SIDE) for length in grid)
        convolution = CONVOLUTIONS[len(grid)]
        self.body = nn.Sequential(
            convolution(channels, WIDTH, 3, stride=2, padding=1),
            nn.ReLU(),
            convolution(WIDTH, 2 * WIDTH, 3, stride=2, padding=1),
            nn.ReLU(),
            self._pool(),
            nn.Flatten(),
            nn.Linear(2 * WIDTH * POOLED ** len(grid), FEATURES),
            nn.ReLU(),
        )
        self.head = nn.Linear(FEATURES, classes)

    def _pool(self) -> nn.Module:
        """Of what is seven wide already each mean is of one value, and finding them took half of a step."""
        if all(math.ceil(length / 4) == POOLED for length in self.grid):
            return nn.Identity()
        pool: nn.Module = POOLS[len(self.grid)](POOLED)
        return pool

    def features(self, x: Tensor) -> Tensor:
        """(n, features) of samples that are standardised."""
        if tuple(x.shape[2:]) != self.grid:
            x = F.interpolate(x, size=self.grid, mode="area")
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the classes."""
        return self.head(self.features(x))


def standard(values: Tensor, contents: SampleFormat) -> Tensor:
    """Values as they are seen, standardised: pixels to [-1, 1], anything else by its statistics."""
    if values.dtype == torch.uint8:
        return values.float() / 127.5 - 1
    shape = (1, -1, *[1] * (values.ndim - 2))
    mean, std = (torch.tensor(each).view(shape) for each in (contents.mean, contents.std))
    return (values.float() - mean) / std


def can_learn(real: Real) -> bool:
    """Whether there are labels, and enough of them."""
    labels = real.classes
    return labels is not None and int((labels >= 0).sum()) >= 2 * BATCH


def trained(real: Real, seen: Tensor, folder: Path) -> tuple[Classifier, float]:
    """The classifier of these data, from its file or trained now, and its accuracy on held-out samples.

    Always on the CPU and from one seed: it is a ruler, the same for everybody who measures on these data.
    """
    if not can_learn(real):
        raise DataError(
            f"features 'classifier' need labels, at least {2 * BATCH} samples with one; use pixels, or a "
            "vision model of transformers"
        )
    labels = real.classes
    assert labels is not None
    key = digest([real.name, list(seen.shape), STEPS, BATCH, RATE, WIDTH, FEATURES])[:16]
    path = folder / f"classifier-{key}.safetensors"
    about = path.with_suffix(".json")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Classifier(seen.shape[1:], len(real.contents.class_names))
    if path.is_file() and about.is_file():
        network.load_state_dict(read_tensors(path))
        return network.eval(), float(read_json(about)["accuracy"])
    rows = (labels >= 0).nonzero()[:, 0]
    held = max(1, int(HELD_OUT * len(rows)))
    _train(network, seen, labels, rows[held:], real.contents)
    right = _predictions(network, seen[rows[:held]], real.contents) == labels[rows[:held]]
    with replacing(path) as beside:
        write_tensors(beside, dict(network.state_dict()))
    accuracy = float(right.float().mean())
    write_json(about, {"accuracy": accuracy, "held_out": held, "steps": STEPS})
    return network.eval(), accuracy


def _train(network: Classifier, seen: Tensor, labels: Tensor, rows: Tensor, contents: SampleFormat) -> None:
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE)
    source = draws.generator(0, "classifier")
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        chosen = rows[torch.randint(len(rows), (BATCH,), generator=source)]
        loss = F.cross_entropy(network(standard(seen[chosen], contents)), labels[chosen])
        torch.autograd.backward(loss)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    network.requires_grad_(False)


@torch.inference_mode()
def _predictions(network: Classifier, seen: Tensor, contents: SampleFormat) -> Tensor:
    return torch.cat([network(standard(part, contents)).argmax(1) for part in distances.in_parts(seen, 500)])

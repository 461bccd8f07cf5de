"""A finished expert, asked about noisy samples of its own cluster at chosen times."""

import torch
from torch import Tensor, nn

from atoll.data.store import Batch, Reader
from atoll.flow import draws, path
from atoll.models import checkpoint, conditions
from atoll.runs import Stage
from atoll.train import holdout
from atoll.train.moving import to_device

ROWS = 64
"""Samples of a forward pass."""


def samples(cluster: Stage, number: int, seed: int) -> tuple[Batch, Batch]:
    """So many of a cluster's samples, and samples to judge by: held-out ones where there are."""
    some = Reader([cluster], 1, seed).first(number)
    held = holdout.read([cluster], some.x_0.shape[1:])
    return some, some if held is None else held


class Trial:
    """The same samples with the same noise, whatever the time."""

    def __init__(
        self, expert: nn.Module, blueprint: checkpoint.Blueprint, judged: Batch, most: int, seed: int
    ) -> None:
        """At most so many of the samples that are there to judge by."""
        device = next(expert.parameters()).device
        batch = to_device(judged, slice(0, most), device)
        self.expert, self._x_0, self.condition = expert, batch.x_0, _told(blueprint, batch)
        noise = torch.randn(batch.x_0.shape, generator=draws.generator(seed, "shrinkage"))
        self._noise = noise.to(device)
        self.target = path.velocity(self._x_0, self._noise)
        """What is to be told from the noisy samples."""

    def at(self, time: float) -> tuple[Tensor, Tensor, Tensor]:
        """The noisy samples, their times and what the expert says of them."""
        t = torch.full((len(self._noise),), time, device=self._noise.device)
        x_t = path.point(self._x_0, self._noise, t)
        pieces = torch.split(torch.arange(len(t), device=t.device), ROWS)
        answers = [self.expert(x_t[some], t[some], conditions.take(self.condition, some)) for some in pieces]
        return x_t, t, torch.cat(answers).float()


def _told(blueprint: checkpoint.Blueprint, batch: Batch) -> conditions.Condition:
    """What each sample is told when it is drawn."""
    if blueprint.condition == "class":
        assert batch.label is not None
        return conditions.hide(batch.label, batch.label < 0, blueprint.classes)
    if blueprint.condition == "text":
        assert batch.text is not None
        return conditions.TextCondition(batch.text.tokens, batch.text.mask, batch.text.pooled)
    return None

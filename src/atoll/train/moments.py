"""How much is left of an expert's velocity at each time, where its prediction is read off as one: measured.

Of experts that predict velocities nothing is measured: their errors are not multiplied.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from atoll import devices
from atoll.data.store import Batch, Reader
from atoll.flow import draws, gaussian, path, shrinkage
from atoll.flow.gaussian import Gaussian
from atoll.models import checkpoint, conditions, shrunk
from atoll.models.expert import as_expert
from atoll.models.shrunk import Shrunk
from atoll.runs import Stage, replacing
from atoll.train import holdout
from atoll.train.moving import to_device

RANK, MOMENTS, MEASURED = 32, 1000, 256
"""Directions of the samples' Gaussian, and samples by which it is known and by which shares are measured."""
TIMES = (0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)
"""Where shares are measured."""
ROWS = 64
"""Samples of a forward pass."""


def needed(blueprint: checkpoint.Blueprint) -> bool:
    """Whether a network's errors are multiplied when its prediction is read off as a velocity."""
    return blueprint.objective.prediction == "noise" and blueprint.adapter is None


def write(stage: Stage, cluster: Stage, blueprint: checkpoint.Blueprint, seed: int) -> list[str]:
    """Measure an expert whose files are written, if it has to be, and write that beside them."""
    if not needed(blueprint):
        return []
    device = devices.best()
    network, _ = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG, device)
    known, judged = samples(cluster, MOMENTS, RANK, seed, device)
    expert = as_expert(network, blueprint.objective)
    measured = _measured(Trial(expert, judged, MEASURED, seed, device, _told(blueprint)), known)
    with replacing(stage.path / shrunk.FILE) as beside:
        checkpoint.write_tensors(beside, measured.tensors())
    return [shrunk.FILE]


def samples(
    cluster: Stage, number: int, rank: int, seed: int, device: torch.device
) -> tuple[Gaussian, Batch]:
    """Moments of so many of a cluster's samples, and samples to judge by: held-out ones where there are."""
    some = Reader([cluster], 1, seed).first(number)
    held = holdout.read([cluster], some.x_0.shape[1:])
    known = Gaussian(*(value.to(device) for value in gaussian.fitted(some.x_0, rank)))
    return known, some if held is None else held


Tell = Callable[[Batch], conditions.Condition]
"""What each of some samples is told when it is drawn."""


class Trial:
    """An expert that is asked about the same noisy samples of its cluster at any time."""

    def __init__(
        self,
        expert: nn.Module,
        judged: Batch,
        most: int,
        seed: int,
        device: torch.device,
        tell: Tell = lambda batch: None,
    ) -> None:
        """At most so many of the samples that are there to judge by."""
        self.expert, self._batch = expert, to_device(judged, slice(0, most), device)
        noise = torch.randn(self._batch.x_0.shape, generator=draws.generator(seed, "shrinkage"))
        self._noise, self._condition = noise.to(device), tell(self._batch)
        self.target = self._noise - self._batch.x_0
        """What is to be told from the noisy samples."""

    def at(self, time: float) -> tuple[Tensor, Tensor, Tensor]:
        """The noisy samples, their times and what the expert says of them."""
        t = torch.full((len(self._noise),), time, device=self._noise.device)
        x_t = path.point(self._batch.x_0, self._noise, t)
        pieces = torch.split(torch.arange(len(t), device=t.device), ROWS)
        answers = [self.expert(x_t[some], t[some], conditions.take(self._condition, some)) for some in pieces]
        return x_t, t, torch.cat(answers).float()


@torch.inference_mode()
def _measured(trial: Trial, known: Gaussian) -> Shrunk:
    def share(time: float) -> float:
        x_t, t, predicted = trial.at(time)
        return shrinkage.share(trial.target, predicted, gaussian.velocity(known, x_t, t))

    device = known.mean.device
    shares = torch.tensor([share(time) for time in TIMES], device=device)
    return Shrunk(trial.expert, known, torch.tensor(TIMES, device=device), shares)


def _told(blueprint: checkpoint.Blueprint) -> Tell:
    """What samples are told, by what the expert was told of its own."""

    def tell(batch: Batch) -> conditions.Condition:
        if blueprint.condition == "class":
            assert batch.label is not None
            return conditions.hide(batch.label, batch.label < 0, blueprint.classes)
        if blueprint.condition == "text":
            assert batch.text is not None
            return conditions.TextCondition(batch.text.tokens, batch.text.mask, batch.text.pooled)
        return None

    return tell

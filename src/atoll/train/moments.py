"""How much is left of an expert's velocity at each time, where its prediction is read off as one: measured.

Of experts that predict velocities nothing is measured: their errors are not multiplied.
"""

import torch

from atoll import devices
from atoll.flow import gaussian, shrinkage
from atoll.flow.gaussian import Gaussian
from atoll.models import checkpoint, shrunk
from atoll.models.expert import as_expert
from atoll.models.shrunk import Shrunk
from atoll.runs import Stage, replacing
from atoll.train import trials
from atoll.train.trials import Trial

RANK, MOMENTS, MEASURED = 32, 1000, 256
"""Directions of the samples' Gaussian, and samples by which it is known and by which shares are measured."""
TIMES = (0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)
"""Where shares are measured."""


def needed(blueprint: checkpoint.Blueprint) -> bool:
    """Whether a network's errors are multiplied when its prediction is read off as a velocity."""
    return blueprint.objective.prediction == "noise" and blueprint.adapter is None


def write(stage: Stage, cluster: Stage, blueprint: checkpoint.Blueprint, seed: int) -> list[str]:
    """Measure an expert whose files are written, if it has to be, and write that beside them."""
    if not needed(blueprint):
        return []
    device = devices.best()
    network, _ = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG, device)
    some, judged = trials.samples(cluster, MOMENTS, seed)
    known = Gaussian(*(value.to(device) for value in gaussian.fitted(some.x_0, RANK)))
    trial = Trial(as_expert(network, blueprint.objective), blueprint, judged, MEASURED, seed)
    measured = _measured(trial, known)
    with replacing(stage.path / shrunk.FILE) as beside:
        checkpoint.write_tensors(beside, measured.tensors())
    return [shrunk.FILE]


@torch.inference_mode()
def _measured(trial: Trial, known: Gaussian) -> Shrunk:
    def share(time: float) -> float:
        x_t, t, predicted = trial.at(time)
        return shrinkage.share(trial.target, predicted, gaussian.velocity(known, x_t, t))

    device = known.mean.device
    shares = torch.tensor([share(time) for time in TIMES], device=device)
    return Shrunk(trial.expert, known, torch.tensor(TIMES, device=device), shares)

"""How much is left of an expert's velocity at each time, where its prediction is read off as one: measured.

Of experts that predict velocities nothing is measured: their errors are not multiplied.
"""

import torch

from atoll import devices
from atoll.data.store import Batch, Reader
from atoll.flow import draws, path, shrinkage
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
    some = Reader([cluster], 1, seed).first(MOMENTS)
    held = holdout.read([cluster], some.x_0.shape[1:])
    judged = some if held is None else held
    expert = as_expert(network, blueprint.objective)
    measured = _measured(expert, blueprint, shrinkage.gaussian(some.x_0, RANK), judged, device, seed)
    with replacing(stage.path / shrunk.FILE) as beside:
        checkpoint.write_tensors(beside, measured.tensors())
    return [shrunk.FILE]


@torch.inference_mode()
def _measured(
    expert: torch.nn.Module,
    blueprint: checkpoint.Blueprint,
    known: shrinkage.Gaussian,
    judged: Batch,
    device: torch.device,
    seed: int,
) -> Shrunk:
    batch = to_device(judged, slice(0, MEASURED), device)
    noise = torch.randn(batch.x_0.shape, generator=draws.generator(seed, "shrinkage")).to(device)
    known = shrinkage.Gaussian(*(value.to(device) for value in known))
    condition = _told(blueprint, batch)

    def share(time: float) -> float:
        t = torch.full((len(noise),), time, device=device)
        x_t = path.point(batch.x_0, noise, t)
        pieces = torch.split(torch.arange(len(noise), device=device), ROWS)
        v = torch.cat([expert(x_t[some], t[some], conditions.take(condition, some)) for some in pieces])
        return shrinkage.share(noise - batch.x_0, v.float(), shrinkage.gaussian_velocity(known, x_t, t))

    shares = torch.tensor([share(time) for time in TIMES], device=device)
    return Shrunk(expert, known, torch.tensor(TIMES, device=device), shares)


def _told(blueprint: checkpoint.Blueprint, batch: Batch) -> conditions.Condition:
    """What each sample is told when it is drawn."""
    if blueprint.condition == "class":
        assert batch.label is not None
        return conditions.hide(batch.label, batch.label < 0, blueprint.classes)
    if blueprint.condition == "text":
        assert batch.text is not None
        return conditions.TextCondition(batch.text.tokens, batch.text.mask, batch.text.pooled)
    return None

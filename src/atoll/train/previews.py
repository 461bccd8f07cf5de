"""What a network in training makes of the same noise, every so often, so that one sees it learn."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atoll import devices
from atoll.data import sheets
from atoll.flow import draws, solver
from atoll.models import expert
from atoll.models.checkpoint import Objective
from atoll.models.conditions import Condition
from atoll.runs import previews
from atoll.runs.records import SamplesContents

if TYPE_CHECKING:
    from atoll.train.loop import Steps

COUNT = 8
"""Samples of a preview."""
STEPS = 16
"""Of Euler's method: a preview costs about as much as a training step for every 3 x 8 samples of a batch."""
SEED = 0
"""Of the noise, whatever the run's is: another run of the same data begins with the same."""


@dataclass(frozen=True)
class Preview:
    """What must be known to draw from a network: what it predicts, what it is told, what samples are."""

    objective: Objective
    contents: SamplesContents
    condition: Condition = None
    """Of each of the samples, on the CPU."""


def due(steps: "Steps") -> bool:
    """Whether a preview belongs to this step."""
    every = steps.config.preview_every
    return steps.task.preview is not None and every > 0 and steps.state.step % every == 0


def draw(steps: "Steps") -> None:
    """Draw with the averaged weights and leave a picture; all ranks draw, since they may share weights."""
    assert steps.task.preview is not None
    x_0 = _sampled(steps, steps.task.preview)
    if steps.task.ranks.first:
        path = previews.path_of(steps.task.stage.path, steps.state.step)
        sheets.page(x_0, steps.task.preview.contents, path, COUNT)


@torch.no_grad()
def _sampled(steps: "Steps", preview: Preview) -> Tensor:
    noise = draws.sample_noise(SEED, range(COUNT), preview.contents.shape).to(steps.device)
    condition = None if preview.condition is None else preview.condition.to(steps.device)

    def velocity(x_t: Tensor, t: Tensor) -> Tensor:
        with devices.autocast(steps.arithmetic, steps.device):
            return expert.velocity(steps.model, preview.objective, x_t, t, condition).float()

    with steps.as_sampled():
        return solver.integrate(velocity, noise, STEPS)

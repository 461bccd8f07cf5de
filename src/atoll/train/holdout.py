"""The loss on samples that nobody trains on, by time: of the averaged weights, with the same noise always."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from atoll import devices
from atoll.data import holdout
from atoll.data.store import Batch
from atoll.flow import draws
from atoll.runs import Stage
from atoll.train.moving import draws_to_device, to_device
from atoll.train.window import by_time

if TYPE_CHECKING:
    from atoll.train.loop import Steps

ROWS = 256
"""Samples of one measurement; where fewer are held out they come again, with other noise."""
FEWEST, BYTES = 32, 64 * 2**20
"""Of large samples no more than these bytes, but never fewer than so many."""
SEED = 0
"""Of noise and times, whatever the run's is: another run of the same data is asked the same."""


def rows_of(shape: Sequence[int]) -> int:
    """Samples of one measurement, for samples of this shape."""
    return min(ROWS, max(FEWEST, BYTES // (4 * math.prod(shape))))


def read(clusters: Sequence[Stage], shape: Sequence[int]) -> Batch | None:
    """What is held out of the clusters that a job trains on, as much as one measurement takes."""
    return holdout.read(clusters, rows_of(shape))


@torch.no_grad()
def losses(steps: "Steps") -> dict[str, float]:
    """The mean loss, and that of each part of the time; every rank does all of it, so that none waits."""
    task, config, batch = steps.task, steps.config, steps.task.held_out
    if batch is None:
        return {}
    size, most = rows_of(batch.x_0.shape[1:]), config.micro_batch or config.batch
    drawn = draws.training_draws(
        SEED,
        "holdout",
        0,
        (size, *batch.x_0.shape[1:]),
        task.dropout,
        times=config.times,
        shift=config.time_shift,
        span=config.time_span,
        pairs=task.pairs,
    )
    values = []
    with steps.as_sampled():
        for start in range(0, size, most):
            rows = slice(start, min(start + most, size))
            again = torch.arange(rows.start, rows.stop) % len(batch.x_0)
            part, part_drawn = (
                to_device(batch, again, steps.device),
                draws_to_device(drawn, rows, steps.device),
            )
            with devices.autocast(steps.arithmetic, steps.device):
                values.append(task.loss(steps.model, part, part_drawn).float())
    loss = torch.cat(values).cpu()
    parts = {name.replace("loss", "holdout"): value for name, value in by_time(loss, drawn.t).items()}
    measured = {"holdout": loss.mean().item(), **parts}
    return {name: value for name, value in measured.items() if math.isfinite(value)}

"""From the CPU to a device while the CPU goes on, keeping at hand what it must read itself."""

from dataclasses import replace

import torch
from torch import Tensor

from atoll.data.store import Batch
from atoll.data.text import TextStates
from atoll.flow.draws import TrainingDraws


def to_device(batch: Batch, rows: slice | Tensor, device: torch.device) -> Batch:
    """Some rows of the batch on the device, copied while the CPU goes on."""
    label = None if batch.label is None else move(batch.label[rows], device)
    text = batch.text
    if text is not None:
        text = TextStates(*(move(value[rows], device) for value in (text.tokens, text.mask, text.pooled)))
    x_0, cluster = move(batch.x_0[rows], device), move(batch.cluster[rows], device)
    here = batch.cluster_on_cpu[rows]
    return replace(batch, x_0=x_0, label=label, cluster=cluster, text=text, host_cluster=here)


def move(value: Tensor, device: torch.device) -> Tensor:
    """A copy from pinned memory does not wait; any other does, whatever non_blocking says."""
    if device.type == "cuda":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


class MovedDraws(TrainingDraws):
    """Random numbers on a device."""

    host: TrainingDraws
    """The same on the CPU, where reading them makes nobody wait."""


def draws_to_device(drawn: TrainingDraws, rows: slice, device: torch.device) -> MovedDraws:
    """Some rows of what was drawn on the device, and on the CPU for whoever must choose."""
    here = TrainingDraws(*(value[rows] for value in drawn))
    moved = MovedDraws(*(move(value, device) for value in here))
    moved.host = here
    return moved


def on_cpu(drawn: TrainingDraws) -> TrainingDraws:
    """The same random numbers on the CPU, from where they came."""
    return drawn.host if isinstance(drawn, MovedDraws) else drawn

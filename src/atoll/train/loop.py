"""The one training loop: step, log, save, resume."""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType

import torch
from torch import Tensor, nn

from atoll.config import TrainConfig
from atoll.data.store import Batch, Reader
from atoll.errors import Interrupted, TrainingError
from atoll.flow import draws
from atoll.runs import Metrics, Stage
from atoll.train import state as states

Loss = Callable[[nn.Module, Batch, draws.TrainingDraws], Tensor]
"""The loss of each sample of a batch."""


@dataclass(frozen=True)
class Task:
    """What is trained, on what, and how."""

    name: str
    """The job's name; with the seed and the step it determines every random number."""
    model: nn.Module
    loss: Loss
    reader: Reader
    config: TrainConfig
    seed: int
    dropout: float
    stage: Stage


def train(task: Task, device: torch.device) -> states.TrainingState:
    """Train to the last step, from wherever an earlier call stopped."""
    model = task.model.to(device).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=task.config.lr, weight_decay=task.config.weight_decay, fused=True
    )
    state = states.TrainingState(model, optimiser)
    folder = task.stage.path / "state"
    states.resume(state, folder)
    metrics = Metrics(task.stage.path / "metrics.jsonl", state.step)
    batches = task.reader.batches(state.step)
    try:
        with stop_requests() as stopping:
            _run(task, state, batches, metrics, stopping)
    finally:
        batches.close()
        metrics.close()
    return state


def _run(
    task: Task,
    state: states.TrainingState,
    batches: Iterator[Batch],
    metrics: Metrics,
    stopping: Callable[[], bool],
) -> None:
    config, folder = task.config, task.stage.path / "state"
    window = Window(state.step)
    while state.step < config.steps:
        loss, norm = take_step(task, state, next(batches))
        window.add(loss, norm)
        if state.step % config.log_every == 0 or state.step == config.steps:
            window.log(task, state, metrics)
        if state.step % config.save_every == 0 or state.step == config.steps or stopping():
            states.save(state, folder)
            if stopping() and state.step < config.steps:
                raise Interrupted(f"{task.name} stopped at step {state.step} of {config.steps}")


def take_step(task: Task, state: states.TrainingState, batch: Batch) -> tuple[Tensor, Tensor]:
    """One step of the optimiser; gives the loss and the gradient's norm without waiting for the device."""
    config, device = task.config, state.parameters[0].device
    drawn = draws.training_draws(task.seed, task.name, state.step, batch.x_0.shape, task.dropout)
    drawn = draws.TrainingDraws(*(_move(value, device) for value in drawn))
    for group in state.optimiser.param_groups:
        group["lr"] = config.lr * learning_rate(config, state.step)
    with autocast(config, device):
        loss = task.loss(state.model, to_device(batch, device), drawn).mean()
    torch.autograd.backward(loss)
    norm = nn.utils.clip_grad_norm_(state.parameters, config.clip, foreach=True)
    state.optimiser.step()
    state.optimiser.zero_grad(set_to_none=True)
    state.step += 1
    torch._foreach_lerp_(state.ema, [p.detach() for p in state.parameters], 1 - ema_decay(config, state.step))
    return loss.detach(), norm


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on the device, copied while the CPU goes on."""
    label = None if batch.label is None else _move(batch.label, device)
    return replace(batch, x_0=_move(batch.x_0, device), label=label, cluster=_move(batch.cluster, device))


def _move(value: Tensor, device: torch.device) -> Tensor:
    """A copy from pinned memory does not wait; any other does, whatever non_blocking says."""
    if device.type == "cuda":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The factor of the learning rate at a step: a linear warm-up, then constant or a cosine to zero."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.decay == "none":
        return 1.0
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def ema_decay(config: TrainConfig, step: int) -> float:
    """The decay of the average: short while training is young, so that it does not remember the start."""
    return min(config.ema, (1 + step) / (10 + step))


def autocast(config: TrainConfig, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """The arithmetic of forward and backward."""
    wanted = config.precision == "bfloat16" or (config.precision == "auto" and device.type == "cuda")
    if not wanted:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


class Window:
    """The steps since the last line of metrics."""

    def __init__(self, step: int) -> None:
        self.first = step
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.since = time.perf_counter()

    def add(self, loss: Tensor, norm: Tensor) -> None:
        """Remember one step, still on its device."""
        self.losses.append(loss)
        self.norms.append(norm)

    def log(self, task: Task, state: states.TrainingState, metrics: Metrics) -> None:
        """Write one line, or stop where the loss is not a number any more."""
        losses = torch.stack(self.losses).float()
        if not losses.isfinite().all():
            step = self.first + int(losses.isfinite().logical_not().nonzero()[0])
            raise TrainingError(
                f"{task.name}: the loss is not finite at step {step} (gradient norm {self.norms[-1]:.3g}); "
                f"lower the learning rate ({task.config.lr:g}) and run again with --start-over"
            )
        seconds = time.perf_counter() - self.since
        metrics.write(
            state.step,
            loss=losses.mean().item(),
            gradient_norm=torch.stack(self.norms).float().mean().item(),
            samples_per_second=len(losses) * task.config.batch / seconds,
        )
        self.__init__(state.step)  # type: ignore[misc]


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn SIGTERM and SIGINT into a question that the loop asks after each step."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""The one training loop: step, log, save, resume."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from atoll import devices, threads
from atoll.config import TrainConfig
from atoll.data.store import Batch, Reader
from atoll.errors import Interrupted
from atoll.flow import draws
from atoll.models.dit import product
from atoll.runs import Metrics, Run, Stage, stop_requests
from atoll.sampling import memory
from atoll.train import hardware, holdout, optimiser, previews, sharding, tracking
from atoll.train import segment as segments
from atoll.train import state as states
from atoll.train.moving import draws_to_device, to_device
from atoll.train.ranks import Ranks
from atoll.train.scaling import LossScale
from atoll.train.stopping import Agreement
from atoll.train.window import Taken, Window

logger = logging.getLogger(__name__)

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
    ranks: Ranks = field(default_factory=Ranks)
    pairs: float = 0.0
    """The share of samples that get a second time, at which a step ends."""
    start: Callable[[states.TrainingState], None] | None = None
    """Brings a new state to where this training begins, if that is not the network as it is at step 0."""
    until: int | None = None
    """The step after which this training ends; by default the last of its schedule."""
    held_out: Batch | None = None
    """Samples that nobody trains on, on which the loss is measured now and then."""
    run: Run | None = None
    """The run that it is a job of, if others may be told what it measures."""
    preview: previews.Preview | None = None
    """How to draw from the network, where it is one that can be drawn from."""

    @property
    def last(self) -> int:
        """The step after which training ends."""
        return self.config.steps if self.until is None else self.until


class Steps:
    """Takes steps: the network as this machine trains it."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.device, self.config = task, device, task.config
        if device.type == "cpu":
            memory.keep()
        self.model = task.model.to(device).train()
        trunk = getattr(self.model, "trunk", None)
        if trunk is not None:
            trunk.recompute = self.config.recompute
        self.network = sharding.spread(self.model, self.config, task.ranks, device)
        self.arithmetic = devices.arithmetic(self.config.precision, device)
        self.compiled = False
        scale = LossScale(device) if self.arithmetic == "float16" else None
        self.state = states.TrainingState(self.model, optimiser.build(self.model, self.config), scale)

    def settle(self, before: dict[str, Any], batch: Batch) -> dict[str, Any]:
        """Decide how steps are taken, with a trial on this batch if need be."""
        chosen = hardware.decide(self.config, self.device, before, lambda: self._compiling_helps(batch))
        self.arithmetic = chosen["precision"]
        self.compiled = chosen["compile"]
        if self.compiled:
            hardware.compile_blocks(self.model)
        return chosen

    @contextlib.contextmanager
    def as_sampled(self) -> Iterator[None]:
        """For a while the network is as it will sample; not compiled, since it is not asked often enough."""
        eager = torch.compiler.set_stance("force_eager") if self.compiled else contextlib.nullcontext()
        with eager, self.state.as_averaged():
            yield
            sharding.release(self.model)  # else the next step would begin with averaged ones

    def _compiling_helps(self, batch: Batch) -> bool:
        """Whether steps are to be compiled here; ranks agree on it, none of them takes a step for that."""
        ranks, ahead = self.task.ranks, self.config.steps - self.state.step
        trial = (lambda: self._try(batch)) if ranks.size == 1 else None
        if self.device.type == "cuda":
            works = hardware.compiling_works(self.model, self.device, trial)
            return not ranks.any(not works, self.device)
        if self.device.type == "cpu" and trial is not None:
            return hardware.compiling_pays(self.model, trial, ahead)
        return False

    def _try(self, batch: Batch) -> None:
        """A step that changes nothing."""
        self.gradients(batch)
        self._forget_gradients()

    def take(self, batch: Batch) -> Taken:
        """One step of the optimiser, without waiting for the device."""
        state, config = self.state, self.config
        losses, t = self.gradients(batch)
        norm, skipped = self._clip()
        for one in state.optimisers:
            one.step(config.lr * learning_rate(config, state.step), skipped)
        self._forget_gradients()
        state.step += 1
        present = [sharding.local(parameter.detach()) for parameter in state.parameters]
        torch._foreach_lerp_(state.ema, present, 1 - ema_decay(config, state.step))
        return Taken(losses, t, norm)

    def _clip(self) -> tuple[Tensor, Tensor | None]:
        """Clip the gradients; their norm before, and with a loss scale 1 if the step must be skipped."""
        parameters, scale = self.state.parameters, self.state.scale
        if scale is not None:
            scale.unscale([sharding.local(one.grad) for one in parameters if one.grad is not None])
        norm = sharding.whole(nn.utils.clip_grad_norm_(parameters, self.config.clip, foreach=True))
        if scale is None:
            return norm, None
        skipped, norm = scale.judge(norm)
        return norm, skipped

    def _forget_gradients(self) -> None:
        for parameter in self.state.parameters:
            parameter.grad = None

    def gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Add up the gradients of the mean loss over the batch, part by part.

        The losses of this rank's samples, and the times of all samples on the CPU.
        """
        task, state, size = self.task, self.state, len(batch.x_0)
        drawn = draws.training_draws(
            task.seed,
            task.name,
            state.step,
            batch.x_0.shape,
            task.dropout,
            times=self.config.times,
            shift=self.config.time_shift,
            span=self.config.time_span,
            pairs=task.pairs,
        )
        own = task.ranks.rows(size)
        most = self.config.micro_batch or max(1, own.stop - own.start)
        starts = range(own.start, own.stop, most)
        parts = []
        for start in starts:
            rows = slice(start, min(start + most, own.stop))
            part, part_drawn = to_device(batch, rows, self.device), draws_to_device(drawn, rows, self.device)
            with sharding.synchronise(self.network, start == starts[-1]):
                with devices.autocast(self.arithmetic, self.device):
                    losses = task.loss(self.network, part, part_drawn)
                # Processes average their gradients, hence their number.
                mean = losses.sum() * (task.ranks.size / size)
                torch.autograd.backward(mean if state.scale is None else mean * state.scale.scale)
            parts.append(losses.detach())
        return torch.cat(parts) if len(parts) > 1 else parts[0], drawn.t


def train(task: Task, device: torch.device) -> states.TrainingState:
    """Train to the last step, from wherever an earlier call stopped."""
    steps = Steps(task, device)
    segment = segments.of(task.stage)
    keeper = states.Keeper(
        task.stage.path / "state",
        task.config,
        task.ranks,
        background=device.type != "cpu",
        saved=segment.note if segment is not None else lambda step, sha256: None,
    )
    if task.start is not None:
        task.start(steps.state)
    keeper.resume(steps.state)
    if steps.state.step and task.ranks.first and task.until is None:  # a round begins where the last ended
        logger.info("%s: resumed from step %d", task.name, steps.state.step)
    with contextlib.ExitStack() as stack:
        if device.type == "cpu":
            rows = task.config.micro_batch or task.config.batch
            stack.enter_context(threads.limited(product(task.model, rows)))
        metrics = None
        if task.ranks.first:
            path, listener = task.stage.path / "metrics.jsonl", _trackers(task, steps.state.step, stack)
            metrics = stack.enter_context(contextlib.closing(Metrics(path, steps.state.step, listener)))
        batches = stack.enter_context(contextlib.closing(task.reader.batches(steps.state.step)))
        stopping = stack.enter_context(stop_requests())
        _run(steps, batches, keeper, metrics, stopping)
    return steps.state


def _trackers(task: Task, step: int, stack: contextlib.ExitStack) -> tracking.Trackers | None:
    """Who else is told what is measured, from this step until the stack is closed."""
    if task.run is None or not task.config.tracking:
        return None
    about = tracking.Tracked(task.run, task.name, task.stage)
    return stack.enter_context(contextlib.closing(tracking.Trackers(about, task.config.tracking, step)))


def _run(
    steps: Steps,
    batches: Iterator[Batch],
    keeper: states.Keeper,
    metrics: Metrics | None,
    stopping: Callable[[], bool],
) -> None:
    task, state, config = steps.task, steps.state, steps.config
    window = Window(state.step, task.ranks, task.name, config.lr)
    agreement, first, segment = Agreement(task.ranks, steps.device), state.step, segments.of(task.stage)
    if segment is not None:
        segment.check(task.name, first, task.last)
        if not first:
            keeper.save(state)
    while state.step < task.last:
        batch = next(batches)
        if state.step == first:
            keeper.remember(steps.settle(keeper.decisions(), batch))
        window.add(taken := steps.take(batch))
        if segment is not None:
            segment.seen(state.step, taken.losses)
        last = state.step == task.last
        ends = segment is not None and state.step >= segment.last
        stop = agreement.reached(stopping() or ends, now=last)
        if state.step % config.log_every == 0 or last:
            due = last or state.step // config.holdout_every > window.first // config.holdout_every
            window.log(state.step, metrics, holdout.losses(steps) if due else {})
        if previews.due(steps):
            previews.draw(steps)
        due = segment is not None and segment.due(state.step)
        if state.step % config.save_every == 0 or due or last or stop:
            window.check()
            keeper.save(state)
            if stop and (not last or task.until is not None):  # more is to come after a round
                keeper.wait()
                raise Interrupted(f"{task.name} stopped at step {state.step} of {task.last}")
    keeper.wait()


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

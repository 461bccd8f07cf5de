"""The one training loop: step, log, save, resume."""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from atoll import devices
from atoll.config import TrainConfig
from atoll.data.store import Batch, Reader
from atoll.data.text import TextStates
from atoll.errors import Interrupted, TrainingError
from atoll.flow import draws
from atoll.runs import Metrics, Stage
from atoll.train import hardware, optimiser, sharding
from atoll.train import state as states
from atoll.train.ranks import Ranks

Loss = Callable[[nn.Module, Batch, draws.TrainingDraws], Tensor]
"""The loss of each sample of a batch."""

BINS = 4
"""Equal parts of the time for which metrics give the loss."""
ASK_OTHERS_EVERY = 10
"""Steps after which the processes of a job ask each other whether to stop."""


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

    @property
    def last(self) -> int:
        """The step after which training ends."""
        return self.config.steps if self.until is None else self.until


class Taken(NamedTuple):
    """What is known after a step, still on its device."""

    losses: Tensor
    """Of each sample."""
    t: Tensor
    """The time of each sample."""
    norm: Tensor
    """The gradient's norm before clipping."""


class Steps:
    """Takes steps: the network as this machine trains it."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task, self.device, self.config = task, device, task.config
        if device.type == "cpu":
            hardware.keep_memory()
        self.model = task.model.to(device).train()
        trunk = getattr(self.model, "trunk", None)
        if trunk is not None:
            trunk.recompute = self.config.recompute
        self.network = sharding.spread(self.model, self.config, task.ranks, device)
        self.state = states.TrainingState(self.model, optimiser.build(self.model, self.config))
        self.arithmetic = devices.arithmetic(self.config.precision, device)

    def settle(self, before: dict[str, Any], batch: Batch) -> dict[str, Any]:
        """Decide how steps are taken, with a trial on this batch if need be."""
        ahead = self.task.last - self.state.step
        trial = lambda: hardware.compiling_pays(self.model, lambda: self._try(batch), ahead)  # noqa: E731
        alone = self.task.ranks.size == 1
        chosen = hardware.decide(self.config, self.device, before, trial if alone else lambda: False)
        self.arithmetic = chosen["precision"]
        if chosen["compile"]:
            hardware.compile_blocks(self.model)
        return chosen

    def _try(self, batch: Batch) -> None:
        """A step that changes nothing."""
        self.gradients(batch)
        self._forget_gradients()

    def take(self, batch: Batch) -> Taken:
        """One step of the optimiser, without waiting for the device."""
        state, config = self.state, self.config
        losses, t = self.gradients(batch)
        norm = nn.utils.clip_grad_norm_(state.parameters, config.clip, foreach=True)
        for one in state.optimisers:
            one.step(config.lr * learning_rate(config, state.step))
        self._forget_gradients()
        state.step += 1
        present = [sharding.local(parameter.detach()) for parameter in state.parameters]
        torch._foreach_lerp_(state.ema, present, 1 - ema_decay(config, state.step))
        return Taken(losses, t, sharding.whole(norm))

    def _forget_gradients(self) -> None:
        for parameter in self.state.parameters:
            parameter.grad = None

    def gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Add up the gradients of the mean loss over the batch, part by part; the losses and their times."""
        task, size = self.task, len(batch.x_0)
        drawn = draws.training_draws(
            task.seed,
            task.name,
            self.state.step,
            batch.x_0.shape,
            task.dropout,
            times=self.config.times,
            shift=self.config.time_shift,
            pairs=task.pairs,
        )
        own = task.ranks.rows(size)
        most = self.config.micro_batch or max(1, own.stop - own.start)
        starts = range(own.start, own.stop, most)
        found = []
        for start in starts:
            rows = slice(start, min(start + most, own.stop))
            part, part_drawn = to_device(batch, rows, self.device), self._draws_of(drawn, rows)
            with sharding.synchronise(self.network, start == starts[-1]):
                with devices.autocast(self.arithmetic, self.device):
                    losses = task.loss(self.network, part, part_drawn)
                # Processes average their gradients, hence their number.
                torch.autograd.backward(losses.sum() * (task.ranks.size / size))
            found.append(losses.detach())
        return torch.cat(found) if len(found) > 1 else found[0], drawn.t[own]

    def _draws_of(self, drawn: draws.TrainingDraws, rows: slice) -> draws.TrainingDraws:
        return draws.TrainingDraws(*(_move(value[rows], self.device) for value in drawn))


def train(task: Task, device: torch.device) -> states.TrainingState:
    """Train to the last step, from wherever an earlier call stopped."""
    steps = Steps(task, device)
    keeper = states.Keeper(
        task.stage.path / "state", task.config, task.ranks, background=device.type != "cpu"
    )
    if task.start is not None:
        task.start(steps.state)
    keeper.resume(steps.state)
    with contextlib.ExitStack() as stack:
        metrics = None
        if task.ranks.first:
            metrics = stack.enter_context(
                contextlib.closing(Metrics(task.stage.path / "metrics.jsonl", steps.state.step))
            )
        batches = stack.enter_context(contextlib.closing(task.reader.batches(steps.state.step)))
        stopping = stack.enter_context(stop_requests())
        _run(steps, batches, keeper, metrics, stopping)
    return steps.state


def _run(
    steps: Steps,
    batches: Iterator[Batch],
    keeper: states.Keeper,
    metrics: Metrics | None,
    stopping: Callable[[], bool],
) -> None:
    task, state, config = steps.task, steps.state, steps.config
    window = Window(state.step)
    while state.step < task.last:
        batch = next(batches)
        if state.step == window.started:
            keeper.remember(steps.settle(keeper.decisions(), batch))
        window.add(steps.take(batch))
        last = state.step == task.last
        stop = _asked(stopping, task.ranks, state.step, steps.device)
        if state.step % config.log_every == 0 or last:
            window.log(task, state.step, metrics)
        if state.step % config.save_every == 0 or last or stop:
            window.check(task)
            keeper.save(state)
            if stop and (not last or task.until is not None):  # more is to come after a round
                keeper.wait()
                raise Interrupted(f"{task.name} stopped at step {state.step} of {task.last}")
    keeper.wait()


def _asked(stopping: Callable[[], bool], ranks: Ranks, step: int, device: torch.device) -> bool:
    """Whether to stop now; all ranks stop at the same step."""
    if ranks.size == 1:
        return stopping()
    return step % ASK_OTHERS_EVERY == 0 and ranks.any(stopping(), device)


def to_device(batch: Batch, rows: slice, device: torch.device) -> Batch:
    """Some rows of the batch on the device, copied while the CPU goes on."""
    label = None if batch.label is None else _move(batch.label[rows], device)
    text = batch.text
    if text is not None:
        text = TextStates(*(_move(value[rows], device) for value in (text.tokens, text.mask, text.pooled)))
    x_0, cluster = _move(batch.x_0[rows], device), _move(batch.cluster[rows], device)
    return replace(batch, x_0=x_0, label=label, cluster=cluster, text=text)


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


class Window:
    """The steps since the last line of metrics."""

    def __init__(self, step: int) -> None:
        self.started = step
        self._open(step)

    def _open(self, step: int) -> None:
        self.first, self.taken, self.since = step, list[Taken](), time.perf_counter()

    def add(self, taken: Taken) -> None:
        """Remember one step, still on its device."""
        self.taken.append(taken)

    def check(self, task: Task) -> None:
        """Stop where a loss or gradient is not a number any more, before it is saved."""
        norms = (
            torch.stack([taken.norm for taken in self.taken]).float().cpu() if self.taken else torch.ones(1)
        )
        totals = [taken.losses.sum() for taken in self.taken]
        finite = norms.isfinite() & (torch.stack(totals).cpu().isfinite() if totals else True)
        if task.ranks.any(not bool(finite.all()), norms.device if not totals else totals[0].device):
            raise TrainingError(self._what_is_wrong(task, finite, norms))

    def _what_is_wrong(self, task: Task, finite: Tensor, norms: Tensor) -> str:
        advice = f"lower the learning rate ({task.config.lr:g}) and run again with --start-over"
        if bool(finite.all()):
            return f"{task.name}: the loss of another rank is not finite; {advice}"
        at = int(finite.logical_not().nonzero()[0])
        taken = self.taken[at]
        bad = taken.losses.isfinite().logical_not().cpu()
        where = "only its gradient is not finite"
        if bool(bad.any()):
            low = int(time_bin(taken.t[bad][:1]).item()) / BINS
            where = f"first for t from {low:g} to {low + 1 / BINS:g}"
        return (
            f"{task.name}: the loss is not finite at step {self.first + at} ({where}; gradient norm "
            f"{norms[at]:.3g}); the last good state is kept: {advice}"
        )

    def log(self, task: Task, step: int, metrics: Metrics | None) -> None:
        """Write one line, or stop where there is nothing good to write."""
        self.check(task)
        losses, t = self._gathered(task)
        if metrics is not None:
            seconds = time.perf_counter() - self.since
            metrics.write(
                step,
                loss=losses.mean().item(),
                gradient_norm=torch.stack([taken.norm for taken in self.taken]).float().mean().item(),
                samples_per_second=len(losses) / seconds,
                **by_time(losses, t),
            )
        self._open(step)

    def _gathered(self, task: Task) -> tuple[Tensor, Tensor]:
        """All losses of the window and their times, of all processes, on the CPU."""
        ranks, batch = task.ranks, task.config.batch
        losses = torch.cat([ranks.gather(taken.losses.float(), batch) for taken in self.taken])
        device = losses.device
        t = torch.cat([ranks.gather(taken.t.to(device), batch) for taken in self.taken])
        return losses.cpu(), t.cpu()


def time_bin(t: Tensor) -> Tensor:
    """Which of the equal parts of [0, 1] each time is in."""
    return (t * BINS).long().clamp(0, BINS - 1)


def by_time(losses: Tensor, t: Tensor) -> dict[str, float]:
    """The mean loss in each part of the time that has samples, named by where the part begins."""
    bins = time_bin(t)
    count = torch.bincount(bins, minlength=BINS)
    total = torch.bincount(bins, weights=losses.double(), minlength=BINS)
    return {f"loss_t{i / BINS:.2f}": (total[i] / count[i]).item() for i in range(BINS) if count[i]}


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

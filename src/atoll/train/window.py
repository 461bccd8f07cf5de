"""The steps since the last line of metrics: what they lost, by time, and whether all of it is finite."""

import time
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.errors import TrainingError
from atoll.runs import Metrics
from atoll.train.ranks import Ranks

BINS = 4
"""Equal parts of the time for which metrics give the loss."""


class Taken(NamedTuple):
    """What is known after a step."""

    losses: Tensor
    """Of each sample of this rank, still on its device."""
    t: Tensor
    """The time of each sample of all ranks, on the CPU."""
    norm: Tensor
    """The gradient's norm before clipping, still on its device."""


class Window:
    """The steps of one job since its last line of metrics."""

    def __init__(self, step: int, ranks: Ranks, name: str, lr: float) -> None:
        self.ranks, self.name = ranks, name
        self.advice = f"lower the learning rate ({lr:g}) and run again with --start-over"
        self._open(step)

    def _open(self, step: int) -> None:
        self.first, self.taken, self.since = step, list[Taken](), time.perf_counter()

    def add(self, taken: Taken) -> None:
        """Remember one step, still on its device."""
        self.taken.append(taken)

    def check(self) -> None:
        """Stop where a loss or gradient is not a number any more, before it is saved."""
        if self.taken:  # else all has been checked when it was logged
            self._require_finite(*self._read())

    def _read(self) -> tuple[Tensor, Tensor]:
        """Losses (steps, rows) and norms (steps) on the CPU; all at once, since every reading waits."""
        losses = torch.stack([taken.losses.float() for taken in self.taken])
        norms = torch.stack([taken.norm.float() for taken in self.taken])
        both = torch.cat([losses, norms[:, None]], dim=1).cpu()
        return both[:, :-1], both[:, -1]

    def _require_finite(self, losses: Tensor, norms: Tensor) -> None:
        finite = norms.isfinite() & losses.isfinite().all(1)
        if self.ranks.any(not bool(finite.all()), self.taken[0].losses.device):
            raise TrainingError(self._what_is_wrong(finite, losses, norms))

    def _what_is_wrong(self, finite: Tensor, losses: Tensor, norms: Tensor) -> str:
        if bool(finite.all()):
            return f"{self.name}: the loss of another rank is not finite; {self.advice}"
        at = int(finite.logical_not().nonzero()[0])
        bad, t = losses[at].isfinite().logical_not(), self.taken[at].t
        where = "only its gradient is not finite"
        if bool(bad.any()):
            low = int(time_bin(t[self.ranks.rows(len(t))][bad][:1]).item()) / BINS
            where = f"first for t from {low:g} to {low + 1 / BINS:g}"
        return (
            f"{self.name}: the loss is not finite at step {self.first + at} ({where}; gradient norm "
            f"{norms[at]:.3g}); the last good state is kept: {self.advice}"
        )

    def log(self, step: int, metrics: Metrics | None, more: Mapping[str, float] | None = None) -> None:
        """Write one line, with what else was measured, or stop where there is nothing good to write."""
        losses, norms = self._read()
        self._require_finite(losses, norms)
        losses = self._of_all_ranks(losses).flatten()
        if metrics is not None:
            seconds = time.perf_counter() - self.since
            metrics.write(
                step,
                loss=losses.mean().item(),
                gradient_norm=norms.mean().item(),
                samples_per_second=len(losses) / seconds,
                **by_time(losses, torch.cat([taken.t for taken in self.taken])),
                **gpu_memory(self.taken[0].losses.device),
                **(more or {}),
            )
        self._open(step)

    def _of_all_ranks(self, losses: Tensor) -> Tensor:
        """The losses (steps, rows) of the whole batch."""
        if self.ranks.size == 1:
            return losses
        own = torch.stack([taken.losses.float() for taken in self.taken], dim=1)
        return self.ranks.gather(own, len(self.taken[0].t)).T.cpu()


def time_bin(t: Tensor) -> Tensor:
    """Which of the equal parts of [0, 1] each time is in."""
    return (t * BINS).long().clamp(0, BINS - 1)


def by_time(losses: Tensor, t: Tensor) -> dict[str, float]:
    """The mean loss in each part of the time that has samples, named by where the part begins."""
    bins = time_bin(t)
    count = torch.bincount(bins, minlength=BINS)
    total = torch.bincount(bins, weights=losses.double(), minlength=BINS)
    return {f"loss_t{i / BINS:.2f}": (total[i] / count[i]).item() for i in range(BINS) if count[i]}


def gpu_memory(device: torch.device) -> dict[str, float]:
    """The most that was held on the GPU so far, in bytes; nothing where there is none."""
    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    return {"gpu_bytes": float(torch.cuda.max_memory_allocated(device))}

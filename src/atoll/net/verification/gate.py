"""Whether a segment helps where it should: losses on secret held-out samples, before and after, paired.

The same samples, noise and times for both, so that what is left of their difference is the segment's doing:
seventy samples show what unpaired ones would need tens of thousands for. It measures usefulness, not effort,
and an expert that has begun to overfit may honestly get worse: so a doubt, never a punishment, except for
work that cannot be replayed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.credit.paired import SIGMAS, WORSE, Change, changes
from atoll.data.store import Batch
from atoll.flow import draws

ELSEWHERE = 2.0
"""How many times its own improvement a segment may bring to another cluster."""

Loss = Callable[[nn.Module, Batch, draws.TrainingDraws], Tensor]


@dataclass(frozen=True)
class Gate:
    """What a segment did to every cluster."""

    own: int
    changes: dict[int, Change]

    @property
    def doubts(self) -> dict[str, str]:
        """What is odd about it, by short names."""
        mine, doubts = self.changes[self.own], {}
        if mine.worse:
            doubts["worse"] = f"the loss on its own cluster rose by {-mine.mean / mine.loss:.1%}"
        for index, other in self.changes.items():
            error = math.hypot(other.error, ELSEWHERE * mine.error)
            excess = other.mean - ELSEWHERE * max(0.0, mine.mean)
            if index != self.own and excess > max(SIGMAS * error, WORSE * other.loss):
                doubts["elsewhere"] = f"cluster {index} gained more than its own, {self.own}"
        return doubts


def paired(before: Tensor, after: Tensor, cluster: Tensor, own: int) -> Gate:
    """The change of each cluster, from losses (rows,) of the same samples with the same noise and times."""
    each = changes(before, after, cluster)
    if own not in each:
        raise ValueError(f"no sample of cluster {own} is held out, so that its gate has nothing to go by")
    return Gate(own, each)


@torch.no_grad()
def losses(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    value: bytes,
    *,
    dropout: float = 0.0,
    span: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """The loss of each sample, with noise and times that follow from a beacon's value."""
    seed = int.from_bytes(value[:7], "big")
    drawn = draws.training_draws(seed, "gate", 0, batch.x_0.shape, dropout, span=span)
    was_training = model.training
    model.eval()
    try:
        return loss(model, batch, drawn).float()
    finally:
        model.train(was_training)


def secret_rows(value: bytes, rows: int, count: int) -> Tensor:
    """Which held-out samples are asked, so that nobody can train for them: from a beacon's later value."""
    source = draws.generator(int.from_bytes(value[:7], "big"), "gate/rows")
    return torch.randperm(rows, generator=source)[:count].sort().values

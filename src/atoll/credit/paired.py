"""What a change did to losses: the same samples, noises and times before and after, so that little is chance.

Pairs are what makes it cheap: losses scatter by what noise they were drawn with, their differences hardly do.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SIGMAS = 4.0
"""Standard errors that are noise: three honest changes in a hundred thousand."""
WORSE = 0.01
"""The share of a loss by which it may rise and still be noise of training."""


@dataclass(frozen=True)
class Change:
    """How much the loss of some samples fell, and how sure that is."""

    mean: float
    """Loss before minus loss after: positive is better."""
    error: float
    loss: float
    """The mean loss before."""
    rows: int

    def rose(self, share: float = WORSE, sigmas: float = SIGMAS) -> bool:
        """Whether it rose by more than noise, and by more than this share of it."""
        return self.mean < -max(sigmas * self.error, share * self.loss)

    @property
    def worse(self) -> bool:
        """Whether it rose by more than noise."""
        return self.rose()


def changes(
    before: Tensor, after: Tensor, group: Tensor, measured: Tensor | None = None
) -> dict[int, Change]:
    """The change of each group of samples, from losses (rows,) that belong to each other row by row.

    Where it is known of rows that nothing changes, nobody need be asked about all of them: both their losses
    are given as zero, and the mean loss is that of the `measured` rows, which were drawn at random.
    """
    each = {}
    for index in sorted(set(group.tolist())):
        rows = group == index
        fall = (before[rows] - after[rows]).double()
        error = float(fall.std()) / math.sqrt(len(fall)) if len(fall) > 1 else math.inf
        loss = before[rows] if measured is None else before[rows & measured]
        each[index] = Change(float(fall.mean()), error, float(loss.mean()), len(fall))
    return each


def together(each: dict[int, Change], shares: dict[int, float]) -> Change:
    """The change of a mixture of groups: means by their shares, errors of groups that are independent."""
    weight = torch.tensor([shares[index] for index in each], dtype=torch.float64)
    weight = weight / weight.sum()
    columns = torch.tensor([[one.mean, one.error, one.loss] for one in each.values()], dtype=torch.float64)
    mean, loss = float(weight @ columns[:, 0]), float(weight @ columns[:, 2])
    error = float((weight * columns[:, 1]).square().sum().sqrt())
    return Change(mean, error, loss, sum(one.rows for one in each.values()))

"""What a router knows in closed form: prototypes of each cluster's samples, and a temperature by time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.flow import prototypes
from atoll.models.conditions import Condition

SMOOTHING = 1e-3
"""Samples of every class that every prototype has besides its own, so that no class is impossible."""
BINS = 10
"""Equal parts of the time, each with a temperature of its own."""


@dataclass(frozen=True)
class Rows:
    """What a router knows of one part's data: round Gaussians in the space of x_0."""

    means: Tensor
    """(prototypes, dims), as networks see samples."""
    variances: Tensor
    """(prototypes,), per dimension."""
    sizes: Tensor
    """(prototypes,): samples behind each."""
    classes: Tensor | None = None
    """(prototypes, classes): samples of each class."""

    def tensors(self) -> dict[str, Tensor]:
        """By the names that they have on disk."""
        named = {"means": self.means, "variances": self.variances, "sizes": self.sizes}
        return named if self.classes is None else {**named, "classes": self.classes}

    def told(self, condition: Tensor) -> Tensor:
        """Log p(class | prototype), (batch, prototypes); zero where no class is told."""
        assert self.classes is not None
        counts = self.classes.double() + SMOOTHING
        table = (counts / counts.sum(1, keepdim=True)).log()
        table = torch.cat([table, torch.zeros(len(table), 1, dtype=table.dtype, device=table.device)], dim=1)
        return table.T[condition]


class Prototypes(nn.Module):
    """log λ_k p_t(x_t, class | k) of groups of parts, each times the inverse temperature of its time."""

    def __init__(self, rows: Sequence[Rows], owner: Sequence[int], weights: Sequence[float]) -> None:
        """`owner` is the group of each part, `weights` how many samples each part counts for."""
        super().__init__()
        self.groups = max(owner) + 1
        self.means: Tensor
        self.variances: Tensor
        self.shares: Tensor
        self.owner: Tensor
        self.classes: Tensor | None
        self.betas: Tensor
        sizes = [
            part.sizes.double() / part.sizes.double().sum() * count
            for part, count in zip(rows, weights, strict=True)
        ]
        self.register_buffer("means", torch.cat([part.means for part in rows]).double())
        self.register_buffer("variances", torch.cat([part.variances for part in rows]).double())
        self.register_buffer("shares", torch.cat(sizes).log() - torch.cat(sizes).sum().log())
        counts = [torch.full((len(part.means),), group) for part, group in zip(rows, owner, strict=True)]
        self.register_buffer("owner", torch.cat(counts))
        known = [part.classes for part in rows if part.classes is not None]
        self.register_buffer("classes", torch.cat(known) if len(known) == len(rows) else None)
        self.register_buffer("betas", torch.ones(1, dtype=torch.float64))

    @classmethod
    def blank(cls, count: int, dims: int, groups: int, classes: int) -> "Prototypes":
        """So many prototypes of nothing, to be filled by `load_state_dict`."""
        table = torch.zeros(count, classes) if classes else None
        made = cls([Rows(torch.zeros(count, dims), torch.ones(count), torch.ones(count), table)], [0], [1.0])
        made.groups, made.betas = groups, torch.ones(BINS, dtype=torch.float64)
        return made

    def calibrated(self, betas: Sequence[float]) -> "Prototypes":
        """The same, with one inverse temperature for each of equal parts of the time."""
        self.betas = torch.tensor(betas, dtype=torch.float64, device=self.betas.device)
        return self

    def forward(self, x_t: Tensor, t: Tensor, condition: Condition = None) -> Tensor:
        """(batch, groups)."""
        t = t.double()
        joint = prototypes.log_density(x_t.flatten(1).double(), t, self.means, self.variances) + self.shares
        if self.classes is not None and isinstance(condition, Tensor):
            sizes = torch.ones(len(self.classes))
            joint = joint + Rows(self.means, self.variances, sizes, self.classes).told(condition)
        bins = (t * len(self.betas)).long().clamp(0, len(self.betas) - 1)
        return prototypes.by_owner(joint, self.owner, self.groups) * self.betas[bins][:, None]

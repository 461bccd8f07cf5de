"""What a network is told besides x_t and t: nothing, or a class."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class NoCondition(nn.Module):
    """Told nothing."""

    def forward(self, condition: Tensor | None) -> float:
        """Add nothing to the embedding of the time."""
        return 0.0


class ClassCondition(nn.Module):
    """Told a class, or the extra class that stands for "not told"."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(classes + 1, width)

    def forward(self, condition: Int[Tensor, " batch"] | None) -> Float[Tensor, "batch width"]:
        """The embedding of each class."""
        assert condition is not None, "a class-conditional network needs classes; hide() gives the null class"
        return self.table(condition)


def build(kind: Literal["none", "class"], classes: int, width: int) -> nn.Module:
    """The module that embeds conditions of this kind."""
    return ClassCondition(classes, width) if kind == "class" else NoCondition()


def hide(
    condition: Int[Tensor, " batch"] | None, hidden: Bool[Tensor, " batch"], classes: int
) -> Int[Tensor, " batch"] | None:
    """Replace the condition of some samples by the null class."""
    return None if condition is None else torch.where(hidden, classes, condition)

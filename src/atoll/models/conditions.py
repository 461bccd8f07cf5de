"""What a network is told besides x_t and t: nothing, a class, or a text.

A condition is one value that travels through batching, dropout, guidance and ensembles: None, classes as a
tensor (batch), or a `TextCondition`. The functions here treat all three alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

Kind = Literal["none", "class", "text"]


@dataclass(frozen=True)
class TextCondition:
    """What is told of captions; a sample whose mask is false everywhere is told nothing."""

    tokens: Float[Tensor, "batch length text"]
    """The state of every token."""
    mask: Bool[Tensor, "batch length"]
    """True where there is a token."""
    pooled: Float[Tensor, "batch text"]
    """One state for the whole caption."""

    def __len__(self) -> int:
        return len(self.mask)

    def __getitem__(self, rows: Tensor | slice) -> "TextCondition":
        return TextCondition(self.tokens[rows], self.mask[rows], self.pooled[rows])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TextCondition":
        """The same on another device."""
        move = (
            value.to(device, non_blocking=non_blocking) for value in (self.tokens, self.mask, self.pooled)
        )
        return TextCondition(*move)


Condition: TypeAlias = Tensor | TextCondition | None
C = TypeVar("C", bound=Condition)
"""One kind of condition, the same in and out."""


def take(condition: C, rows: Tensor | slice) -> C:
    """The condition of some samples."""
    return condition if condition is None else cast(C, condition[rows])


def hide(condition: C, hidden: Bool[Tensor, " batch"], classes: int) -> C:
    """Tell some samples nothing: the null class, or no token."""
    if isinstance(condition, TextCondition):
        mask, pooled = condition.mask & ~hidden[:, None], condition.pooled.masked_fill(hidden[:, None], 0)
        return cast(C, TextCondition(condition.tokens, mask, pooled))
    return condition if condition is None else cast(C, torch.where(hidden, classes, condition))


def null(condition: C, classes: int) -> C:
    """As much as this condition, but nothing told: the unconditional half of guidance."""
    if condition is None:
        return condition
    device = condition.mask.device if isinstance(condition, TextCondition) else condition.device
    return hide(condition, torch.ones(len(condition), dtype=torch.bool, device=device), classes)


def nothing(kind: Kind, batch: int, classes: int, text: int, device: torch.device | str = "cpu") -> Condition:
    """The condition of samples that are told nothing, from nothing."""
    if kind == "class":
        return torch.full((batch,), classes, device=device)
    if kind == "text":
        mask = torch.zeros(batch, 1, dtype=torch.bool, device=device)
        return TextCondition(
            torch.zeros(batch, 1, text, device=device), mask, torch.zeros(batch, text, device=device)
        )
    return None


def concatenate(parts: Sequence[C]) -> C:
    """The conditions of several batches, all of one kind, as one; texts are padded to the longest."""
    if isinstance(parts[0], TextCondition):
        texts = cast(Sequence[TextCondition], parts)
        length = max(part.mask.shape[1] for part in texts)
        joined = TextCondition(
            torch.cat([F.pad(part.tokens, (0, 0, 0, length - part.tokens.shape[1])) for part in texts]),
            torch.cat([F.pad(part.mask, (0, length - part.mask.shape[1])) for part in texts]),
            torch.cat([part.pooled for part in texts]),
        )
        return cast(C, joined)
    return parts[0] if parts[0] is None else cast(C, torch.cat(cast(list[Tensor], list(parts))))


class NoCondition(nn.Module):
    """Told nothing by way of the time."""

    def forward(self, condition: Condition) -> float:
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


class PooledText(nn.Module):
    """Told one state for the whole text, added to the time: what a small router needs (Paris 2.0)."""

    def __init__(self, text: int, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(text, width)

    def forward(self, condition: TextCondition | None) -> Float[Tensor, "batch width"]:
        """The embedding of each text; a hidden one is zero and leaves the bias."""
        assert condition is not None, "a text-conditional network needs texts; hide() gives empty ones"
        return self.project(condition.pooled.to(self.project.weight.dtype))


class TextMemory(nn.Module):
    """Every token's state in the width of the network, for cross-attention; one learned state for no text."""

    def __init__(self, text: int, width: int, mlp: bool = False) -> None:
        """Project by one layer, or by the two of PixArt-α."""
        super().__init__()
        self.project = nn.Linear(text, width)
        self.deepen = nn.Sequential(nn.GELU("tanh"), nn.Linear(width, width)) if mlp else nn.Identity()
        self.null = nn.Parameter(torch.empty(text))

    def forward(
        self, condition: TextCondition | None
    ) -> tuple[Float[Tensor, "batch length width"], Bool[Tensor, "batch 1 1 length"]]:
        """States and which of them may be seen; where there is none, the first becomes the learned one."""
        assert condition is not None, "a text-conditional network needs texts; hide() gives empty ones"
        silent = ~condition.mask.any(1)
        first = torch.zeros_like(condition.mask)
        first[:, 0] = silent
        tokens = torch.where(first[:, :, None], self.null.to(condition.tokens.dtype), condition.tokens)
        memory = self.deepen(self.project(tokens.to(self.project.weight.dtype)))
        return memory, (condition.mask | first)[:, None, None]


def build(kind: Kind, classes: int, text: int, width: int) -> nn.Module:
    """The module that adds conditions to the time; `text` is the width of pooled texts, or 0."""
    if kind == "class":
        return ClassCondition(classes, width)
    return PooledText(text, width) if kind == "text" and text else NoCondition()

"""One pass of a network: of one expert, or of several adapters of one base, each for rows of its own."""

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from atoll.flow.mixture import Rows
from atoll.models.sharing import AdaptedExpert, together


class Pass(Protocol):
    """Gives the network for a batch."""

    def once(self) -> nn.Module:
        """For all rows, each once."""

    def twice(self, again: Rows) -> nn.Module:
        """For all rows, and after them some of them again: the unconditional half of guidance."""


class Alone:
    """One expert, whatever the rows."""

    def __init__(self, expert: nn.Module) -> None:
        self.expert = expert

    def once(self) -> nn.Module:
        """The expert."""
        return self.expert

    def twice(self, again: Rows) -> nn.Module:
        """The expert."""
        return self.expert


class Together:
    """Adapters of one base, each for the next rows."""

    def __init__(self, experts: Sequence[nn.Module], counts: Sequence[int]) -> None:
        self.experts = [one for one in experts if isinstance(one, AdaptedExpert)]
        assert len(self.experts) == len(experts), "only adapters are asked together"
        self.counts = list(counts)

    def once(self) -> nn.Module:
        """The base with each adapter's updates at its rows."""
        return together(self.experts, self.counts)

    def twice(self, again: Rows) -> nn.Module:
        """The same, with as many rows more of each adapter as come again."""
        counts = self.counts if isinstance(again, slice) else self._among(again)
        pairs = [(one, count) for one, count in zip(self.experts, counts, strict=True) if count]
        experts = [*self.experts, *(one for one, _ in pairs)]
        return together(experts, [*self.counts, *(count for _, count in pairs)])

    def _among(self, rows: Tensor) -> list[int]:
        """How many of these rows are each adapter's; the device is waited for."""
        ends = torch.tensor(list(itertools.accumulate(self.counts)), device=rows.device)
        owners = torch.bucketize(rows, ends, right=True)
        numbers: list[int] = (owners[:, None] == torch.arange(len(ends), device=rows.device)).sum(0).tolist()
        return numbers

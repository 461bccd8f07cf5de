"""One pass of a network: of one expert, or of several that are alike, each for rows of its own."""

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from atoll.flow.mixture import Rows
from atoll.models import sharing, siblings
from atoll.models.sharing import AdaptedExpert


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
    """Adapters of one base, or networks of one build, each for the next rows."""

    def __init__(self, experts: Sequence[nn.Module], counts: Sequence[int]) -> None:
        self.experts, self.counts = list(experts), list(counts)

    def once(self) -> nn.Module:
        """One network with what is each expert's own at its rows."""
        return _together(self.experts, self.counts)

    def twice(self, again: Rows) -> nn.Module:
        """The same, with as many rows more of each expert as come again."""
        counts = self.counts if isinstance(again, slice) else self._among(again)
        pairs = [(one, count) for one, count in zip(self.experts, counts, strict=True) if count]
        experts = [*self.experts, *(one for one, _ in pairs)]
        return _together(experts, [*self.counts, *(count for _, count in pairs)])

    def _among(self, rows: Tensor) -> list[int]:
        """How many of these rows are each expert's; the device is waited for."""
        ends = torch.tensor(list(itertools.accumulate(self.counts)), device=rows.device)
        owners = torch.bucketize(rows, ends, right=True)
        numbers: list[int] = (owners[:, None] == torch.arange(len(ends), device=rows.device)).sum(0).tolist()
        return numbers


def _together(experts: Sequence[nn.Module], counts: Sequence[int]) -> nn.Module:
    adapted = [one for one in experts if isinstance(one, AdaptedExpert)]
    assert len(adapted) in (0, len(experts)), "adapters are asked with adapters"
    if adapted:
        return sharing.together(adapted, counts)
    return siblings.together(tuple(experts), tuple(counts))

"""Networks of one build in one pass: products by each one's own weights, all the rest for all rows at once.

Eight experts with one row each would otherwise be eight passes of many small operations, and each of those
costs Python more than it costs the processor.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.models.checkpoint import Blueprint
from atoll.models.sharing import twin_of

KEPT = 8
"""Passes that are remembered: as long as rows keep their experts, each is put together once."""


class Layers(nn.Module):
    """A linear layer of several networks, each for the next rows of a batch."""

    def __init__(self, layers: Sequence[nn.Linear], rows: Sequence[int]) -> None:
        """`rows` of a batch are each layer's."""
        super().__init__()
        self.parts, self.rows = tuple(layers), list(rows)
        """In a tuple, so that the weights are not counted as this one's."""
        self._products = [(layer.bias, layer.weight.T) for layer in layers]

    @property
    def weight(self) -> Tensor:
        """Of the first, by which the arithmetic of all is known."""
        return self.parts[0].weight

    def forward(self, x: Tensor) -> Tensor:
        """Each layer of its rows of (batch, …, in)."""
        if not torch.is_inference_mode_enabled():  # where somebody may want to know derivatives
            own = zip(self.parts, torch.split(x, self.rows), strict=True)
            return torch.cat([layer(piece) for layer, piece in own])
        tokens = x.shape[1:-1].numel()
        sizes = [count * tokens for count in self.rows]
        y = x.new_empty(*x.shape[:-1], len(self.weight))
        pieces, outs = (torch.split(whole.reshape(-1, whole.shape[-1]), sizes) for whole in (x, y))
        for (bias, weight), piece, out in zip(self._products, pieces, outs, strict=True):
            if bias is None:
                torch.mm(piece, weight, out=out)
            else:
                torch.addmm(bias, piece, weight, out=out)
        return y


class Tables(nn.Module):
    """The same of tables: what each network makes of a class."""

    def __init__(self, tables: Sequence[nn.Embedding], rows: Sequence[int]) -> None:
        super().__init__()
        self.parts, self.rows = tuple(tables), list(rows)

    def forward(self, numbers: Tensor) -> Tensor:
        """Each table's entries for its rows."""
        pieces = zip(self.parts, torch.split(numbers, self.rows), strict=True)
        return torch.cat([F.embedding(piece, table.weight) for table, piece in pieces])


class Build(NamedTuple):
    """What networks that can be asked in one pass have in common."""

    description: str


def kin(blueprint: Blueprint) -> Build | None:
    """The build of a network; None where it has learnt more than linear layers and tables hold."""
    network = blueprint.network
    more = network.qk_norm or network.modulation == "shared" or blueprint.tables
    if more or blueprint.adapter is not None or blueprint.condition == "text":
        return None
    return Build(blueprint.model_dump_json())


@functools.lru_cache(maxsize=KEPT)
def together(networks: tuple[nn.Module, ...], rows: tuple[int, ...]) -> nn.Module:
    """One network for a batch of several networks' rows, in this order; all of one build."""
    modules = [dict(network.named_modules()) for network in networks]
    changed: dict[str, nn.Module] = {}
    for name, module in modules[0].items():
        if isinstance(module, nn.Linear):
            changed[name] = Layers([own[name] for own in modules], rows)
        elif isinstance(module, nn.Embedding):
            changed[name] = Tables([own[name] for own in modules], rows)
    return twin_of(networks[0], changed)

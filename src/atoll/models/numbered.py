"""A start that is told the cluster of every sample by its number, as others are told a class.

When it is finished, what tells clusters apart is one vector for each, which lies beside its weights: the
start itself is the network that is told nothing, and an expert begins as the start that is told its own
cluster. So nobody who asks either of them has to say a number, and no network is larger for it.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.errors import CorruptError
from atoll.models import checkpoint
from atoll.models.adapt import FOLD
from atoll.models.dit import DiT

FILE = "clusters.safetensors"
"""Beside the weights of a start."""
TABLE, SHIFTS = "trunk.cluster.weight", "shifts"


def settled(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Float[Tensor, "clusters width"]]:
    """The weights of the network that is told nothing, and what each number adds to the time's embedding.

    With e the embedding of the time and w_k a row of the table, e + w_k = (e + w_null) + (w_k - w_null), and
    a bias of e takes up the first bracket.
    """
    kept = dict(weights)
    table = kept.pop(TABLE)
    kept[FOLD] = kept[FOLD] + table[-1]
    return kept, table[:-1] - table[-1]


def write(path: Path, shifts: Float[Tensor, "clusters width"]) -> None:
    """Keep what the numbers add."""
    checkpoint.write_tensors(path, {SHIFTS: shifts})


@torch.no_grad()
def tell(network: nn.Module, file: Path, number: int) -> nn.Module:
    """The network, told for good that all its samples are of this cluster."""
    shifts = checkpoint.read_tensors(file).get(SHIFTS)
    assert isinstance(network, DiT)
    bias = network.trunk.time.out.bias
    if shifts is None or shifts.ndim != 2 or number >= len(shifts) or shifts.shape[1:] != bias.shape:
        raise CorruptError(f"{file} does not fit the network beside it; delete its folder and train it again")
    bias.add_(shifts[number].to(bias))
    return network

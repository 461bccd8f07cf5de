"""What a network costs, counted from its settings alone: parameters, FLOPs, bytes; no torch.

Tests hold every number to the networks themselves, for every combination of settings.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from atoll.config import NetworkConfig, TrainConfig

FREQUENCIES = 256
"""Size of the sinusoidal embedding of t before its MLP."""
FULL, HALF = 4, 2
"""Bytes of a number."""
TRAINED = 5 * FULL
"""Bytes of a weight in training, without activations: itself, its average, its gradient and two moments."""


@dataclass(frozen=True)
class Network:
    """All that sizes depend on."""

    config: NetworkConfig
    shape: tuple[int, ...]
    kind: str = "none"
    classes: int = 0
    text: int = 0
    """Width of the states of a text."""
    length: int = 0
    """Tokens of a text."""
    clusters: int = 0
    """Of a router; an expert has none."""
    steps: bool = False
    """Whether it is a flow map, which is told where a step ends."""

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.config.width

    @property
    def hidden(self) -> int:
        """Width of the hidden layer."""
        return int(self.width * self.config.mlp)

    @property
    def patch(self) -> int:
        """Values of a token."""
        return self.shape[0] * math.prod(self.config.patch_of(self.shape))

    @property
    def tokens(self) -> int:
        """Tokens of a sample; a router has one of its own."""
        steps = self.config.patch_of(self.shape)
        grid = [size // step for size, step in zip(self.shape[1:], steps, strict=True)]
        return math.prod(grid) + (1 if self.clusters else 0)

    @property
    def cross(self) -> bool:
        """Whether blocks ask a text."""
        return self.kind == "text" and self.config.text != "pooled"

    @property
    def deepened(self) -> bool:
        """Whether two layers project a text instead of one."""
        return self.cross and self.config.text == "cross-mlp"

    @property
    def shared(self) -> bool:
        """Whether all blocks share one layer of modulation."""
        return self.config.modulation == "shared"

    @property
    def matrices(self) -> int:
        """Entries of a block's matrices but for the modulation's: attention, MLP, and to a text."""
        w = self.width
        return 4 * w * w + 2 * w * self.hidden + (4 * w * w if self.cross else 0)


def parameters(network: Network) -> int:
    """How many weights."""
    return network.config.depth * block_parameters(network) + _outside_parameters(network)


def block_parameters(network: Network) -> int:
    """How many weights a block has."""
    w = network.width
    norms = 2 * (w // network.config.heads) if network.config.qk_norm else 0
    count = network.matrices + 4 * w + norms + network.hidden + w
    count += 6 * w if network.shared else 6 * w * w + 6 * w
    return count + (4 * w + norms if network.cross else 0)


def _outside_parameters(network: Network) -> int:
    w = network.width
    time = FREQUENCIES * w + w + w * w + w
    count = network.patch * w + w + time * (2 if network.steps else 1)
    count += 6 * w * w + 6 * w + 2 * w if network.shared else 2 * w * w + 2 * w
    if network.kind == "class":
        count += (network.classes + 1) * w
    elif network.kind == "text":
        count += network.text * w + w + (network.text if network.cross else 0)
        count += w * w + w if network.deepened else 0
    if network.clusters:
        return count + w + w * network.clusters + network.clusters
    return count + w * network.patch + network.patch


def weight_bytes(network: Network, size: int = FULL) -> int:
    """Bytes of a network's weights, each of so many; what one expert takes in memory and on disk."""
    return size * parameters(network)


def forward_flops(network: Network) -> float:
    """Floating-point operations of one sample forward: two per multiplication, of matrix products only."""
    w, n, m = network.width, network.tokens, network.length
    block = n * 2 * (4 * w * w + 2 * w * network.hidden) + 4 * n * n * w
    block += 0 if network.shared else 12 * w * w
    if network.cross:
        block += n * 4 * w * w + m * 4 * w * w + 4 * n * m * w
    time = 2 * (FREQUENCIES * w + w * w)
    total = network.config.depth * block + (12 if network.shared else 4) * w * w
    total += 2 * n * network.patch * w if not network.clusters else 2 * (n - 1) * network.patch * w
    total += time * (2 if network.steps else 1)
    if network.kind == "text":
        total += 2 * (m if network.cross else 1) * network.text * w
        total += 2 * m * w * w if network.deepened else 0
    return float(total + 2 * w * (network.clusters or n * network.patch))


def product(network: Network, batch: int) -> float:
    """Multiplications of the smallest matrix product of a block: what each thread gets a part of."""
    return float(batch * network.tokens * network.width * min(network.width, network.hidden))


class Activations(NamedTuple):
    """Bytes that the forward pass of one batch leaves for the backward pass."""

    kept: float
    """Between the passes."""
    peak: float
    """At most, in the backward pass: with recomputation, one block's are there again."""


def activations(network: Network, batch: int, *, half: bool, recompute: bool) -> Activations:
    """What autograd keeps, tensor by tensor, with attention that keeps no matrix of all pairs."""
    w, n = network.width, network.tokens
    block_copies, outside_copies = _copies(network) if half else (0, 0)
    one = batch * _block_activations(network, half) + block_copies
    kept = batch * FULL * n * w if recompute else one
    outside = batch * _outside_activations(network, half) + outside_copies
    everything = network.config.depth * kept + outside
    return Activations(everything, everything + (one if recompute else 0))


def _block_activations(network: Network, half: bool) -> int:
    """Bytes of one sample in one block."""
    w, n, m, heads = network.width, network.tokens, network.length, network.config.heads
    low = HALF if half else FULL
    # Inputs and outputs of both norms are float32; modulated ones, q, k, v, attended, projected, MLP are low.
    size = n * (4 * FULL * w + low * (8 * w + 2 * network.hidden) + FULL * (4 + heads)) + 8 * low * w
    if network.config.qk_norm:  # written out, as on a CPU; a fused kernel keeps less
        size += n * (4 * FULL * w + (3 if half else 1) * low * w + 2 * FULL * heads)
    if network.cross:
        size += n * (low * 3 * w + FULL * heads) + m * (2 * low * w + low)
        if network.config.qk_norm:
            size += (n + m) * (2 * FULL * w + low * w + FULL * heads)
    return size


def _outside_activations(network: Network, half: bool) -> int:
    """Bytes of one sample before and after all blocks."""
    w, n, m, low = network.width, network.tokens, network.length, HALF if half else FULL
    size = n * (2 * FULL * w + low * w + (low + FULL) * network.patch + 2 * FULL)
    size += FULL * (FREQUENCIES + 6 * w)
    size += m * (FULL * network.text + low * w) if network.cross else 0
    return size + (2 * m * low * w if network.deepened else 0)


def _copies(network: Network) -> tuple[int, int]:
    """Bytes of matrices cast to half precision, which stay until the backward pass: of a block, outside."""
    w = network.width
    block = network.matrices + (0 if network.shared else 6 * w * w)
    # Layers whose inputs need no gradient, of patches and frequencies, do not keep theirs.
    outside = network.patch * w + w * w + (6 if network.shared else 2) * w * w + network.text * w
    outside += w * w if network.deepened else 0
    return HALF * block, HALF * outside


class Memory(NamedTuple):
    """Bytes on each device."""

    weights: float
    average: float
    gradients: float
    """Those of DDP are views of its buckets."""
    optimiser: float
    activations: float
    gathered: float = 0.0
    """Of FSDP: what of the others' shares is there for a while."""
    teachers: float = 0.0
    """Networks that are only asked."""

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def memory(
    network: Network,
    train: TrainConfig,
    *,
    devices: int = 1,
    parallel: Literal["ddp", "fsdp"] = "ddp",
    half: bool = True,
    teachers: float = 0.0,
) -> Memory:
    """What training needs on each of several devices that share the batch, and by FSDP the network too.

    Teachers answer before the student's activations are there, so theirs are never the peak.
    """
    count = parameters(network)
    sharded = devices > 1 and parallel == "fsdp"
    size = FULL / devices if sharded else FULL
    rows = -(-train.batch // devices)
    piece = min(train.micro_batch or rows, rows)
    peak = activations(network, piece, half=half, recompute=train.recompute).peak
    gathered = _gathered(network, piece < rows) if sharded else 0.0
    moments = _moments(network, train) * size
    return Memory(count * size, count * size, count * size, moments, peak, gathered, teachers)


def _moments(network: Network, train: TrainConfig) -> int:
    """Numbers that the optimiser remembers: two a weight, of Muon one for each entry of blocks' matrices."""
    once = network.config.depth * network.matrices if train.optimiser == "muon" else 0
    return 2 * parameters(network) - once


def _gathered(network: Network, several: bool) -> float:
    """Bytes of whole weights and gradients under FSDP: a block at work, the next one, what is outside them.

    Gradients of several micro-batches are added up whole before they are reduced.
    """
    block, outside = block_parameters(network), _outside_parameters(network)
    gradients = parameters(network) if several else block
    return float(FULL * (2 * block + outside + gradients))

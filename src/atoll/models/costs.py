"""What a network costs, counted from its settings alone: parameters, FLOPs, bytes; no torch.

Tests hold every number to the networks themselves, for every combination of settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from atoll.config import AdapterSettings, NetworkConfig, TrainConfig

FREQUENCIES = 256
"""Size of the sinusoidal embedding of t before its MLP."""
FEW_KEYS = 512
"""Keys up to which attention in half precision on a CPU is two products (`models/attention.py`)."""
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
    prototypes: int = 0
    """Of all clusters, which a router compares samples with."""
    steps: bool = False
    """Whether it is a flow map, which is told where a step ends."""
    adapter: AdapterSettings | None = None
    """If it is an adapter of such a network that is trained, and the network itself is frozen."""

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
    """How many weights, with those of an adapter."""
    own = network.config.depth * block_parameters(network) + _outside_parameters(network)
    return own + (learnt(network) if network.adapter is not None else 0)


def learnt(network: Network) -> int:
    """How many weights are trained, written and handed on: all of them, or an adapter's own."""
    if network.adapter is None:
        return parameters(network)
    layers = sum(inside + outside for _, inside, outside in adapted_layers(network))
    shared = 7 * network.width if _modulation(network) and network.shared else 0
    tokens = 2 * network.adapter.tokens * network.width
    own = network.config.depth * (network.adapter.rank * layers + tokens) + network.adapter.rank * shared
    return own + (_biases(network) if network.adapter.biases else 0)


def _biases(network: Network) -> int:
    """What the layers of all blocks add, as an adapter may learn it."""
    w, depth = network.width, network.config.depth
    block = 4 * w + (4 * w if network.cross else 0) + network.hidden + w
    return depth * block + 6 * w * (1 if network.shared else depth)


def _modulation(network: Network) -> bool:
    about = network.adapter
    return about is not None and about.rank > 0 and "modulation" in about.targets


def adapted_layers(network: Network) -> list[tuple[int, int, int]]:
    """Layers of a block that an adapter updates: rows of a sample, values that go in, that come out."""
    assert network.adapter is not None
    w, h, n, m, targets = (
        network.width,
        network.hidden,
        network.tokens,
        network.length,
        network.adapter.targets,
    )
    layers = []
    if "attention" in targets:
        layers += [(n, w, 3 * w), (n, w, w)]
        layers += [(n, w, w), (m, w, 2 * w), (n, w, w)] if network.cross else []
    if "mlp" in targets:
        layers += [(n, w, h), (n, h, w)]
    if _modulation(network) and not network.shared:
        layers += [(1, w, 6 * w)]
    return layers


def _adapter_flops(network: Network) -> float:
    """Of one sample forward: the updates beside the layers, and attention to learnt tokens."""
    assert network.adapter is not None
    rank, w = network.adapter.rank, network.width
    layers = sum(2 * rows * rank * (inside + outside) for rows, inside, outside in adapted_layers(network))
    shared = 2 * rank * 7 * w if _modulation(network) and network.shared else 0
    tokens = 4 * network.tokens * network.adapter.tokens * w
    return float(network.config.depth * (layers + tokens) + shared)


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
    """Bytes of an expert's own weights, each of so many: in memory and on disk, without an adapter's base."""
    return size * learnt(network)


def base_bytes(network: Network, size: int = FULL) -> int:
    """Bytes of the network that an adapter shares with others; 0 for a network of its own."""
    return size * (parameters(network) - learnt(network))


def trained_bytes(network: Network) -> int:
    """Bytes of all weights in training, without activations; those of a frozen base are only held."""
    return TRAINED * learnt(network) + base_bytes(network)


def training_flops(network: Network, *, recompute: bool) -> float:
    """Of one sample forward and backward: twice the forward pass for gradients of inputs and of weights.

    A base that stays as it is needs the first alone, and prototypes, which nothing is learnt of, neither.
    """
    known = _prototype_flops(network)
    forward = forward_flops(network) - known
    update = _adapter_flops(network) if network.adapter is not None else forward
    return known + forward + forward + update + (forward if recompute else 0.0)


def _prototype_flops(network: Network) -> int:
    """Of one sample: its products with what a router knows."""
    return 2 * network.prototypes * math.prod(network.shape)


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
    total += _prototype_flops(network)
    update = 0.0 if network.adapter is None else _adapter_flops(network)
    return update + total + 2 * w * (network.clusters or n * network.patch)


def product(network: Network, batch: int) -> float:
    """Multiplications of the smallest matrix product of a block: what each thread gets a part of."""
    return float(batch * network.tokens * network.width * min(network.width, network.hidden))


class Activations(NamedTuple):
    """Bytes that the forward pass of one batch leaves for the backward pass."""

    kept: float
    """Between the passes."""
    peak: float
    """At most, in the backward pass: with recomputation, one block's are there again."""


def activations(
    network: Network, batch: int, *, half: bool, recompute: bool, pairs: bool = False
) -> Activations:
    """What autograd keeps, tensor by tensor.

    Attention keeps no matrix of all pairs of tokens, but in half precision on a CPU, where it has `pairs`.
    """
    w, n = network.width, network.tokens
    block_copies, outside_copies = _copies(network) if half else (0, 0)
    one = batch * _block_activations(network, half) + block_copies
    if half and pairs:
        one += batch * _pairs(network)
    if network.adapter is not None:
        one -= batch * _spared(network, half)
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


def _pairs(network: Network) -> int:
    """Bytes of one sample in one block that attention by two products keeps and the fused one does not.

    Weights of all pairs in the place of a sum for each query; and of queries, keys and values that
    are normalised, which the fused one keeps in two ways, nothing but what the products take.
    """
    n, heads, normed, size = network.tokens, network.config.heads, network.config.qk_norm, 0
    for keys, rows in ((n, 3 * n), (network.length, n + network.length))[: 2 if network.cross else 1]:
        if keys <= FEW_KEYS:
            size += heads * n * (HALF * keys - FULL) - (HALF * network.width * rows if normed else 0)
    return size


def _outside_activations(network: Network, half: bool) -> int:
    """Bytes of one sample before and after all blocks."""
    w, n, m, low = network.width, network.tokens, network.length, HALF if half else FULL
    size = n * (2 * FULL * w + low * w + (low + FULL) * network.patch + 2 * FULL)
    size += FULL * (FREQUENCIES + 6 * w)
    if network.adapter is not None:  # neither inputs of the embedding nor of the head
        size -= n * (FULL * w + low * w + low * network.patch)
    size += m * (FULL * network.text + low * w) if network.cross else 0
    return size + (2 * m * low * w if network.deepened else 0)


def _spared(network: Network, half: bool) -> int:
    """Bytes of one sample in one block that nobody needs for the gradients of an adapter, less its own."""
    assert network.adapter is not None
    w, n, low, targets = network.width, network.tokens, HALF if half else FULL, network.adapter.targets
    spared = 0  # an upper bound is left: what the first block's inputs do not need, is not taken off
    if not _modulation(network) and not network.adapter.biases:  # inputs of scales and gates
        spared += n * (2 * FULL * w + 2 * low * w)
    if not network.adapter.rank or "attention" not in targets:
        spared += n * low * w
    if not network.adapter.rank or "mlp" not in targets:
        spared += n * low * (w + network.hidden)
    rows = sum(rows for rows, _, _ in adapted_layers(network)) if network.adapter.rank else 0
    heard = n * (low * 2 * w + FULL * network.config.heads) if network.adapter.tokens else 0
    return spared - rows * low * network.adapter.rank - heard


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
    pairs: bool = False,
    teachers: float = 0.0,
) -> Memory:
    """What training needs on each of several devices that share the batch, and by FSDP the network too.

    Teachers answer before the student's activations are there, so theirs are never the peak.
    """
    count, own = parameters(network), learnt(network)
    sharded = devices > 1 and parallel == "fsdp"
    size = FULL / devices if sharded else FULL
    rows = -(-train.batch // devices)
    piece = min(train.micro_batch or rows, rows)
    peak = activations(network, piece, half=half, recompute=train.recompute, pairs=pairs).peak
    gathered = _gathered(network, piece < rows) if sharded else 0.0
    moments = _moments(network, train) * size
    return Memory(count * size, own * size, own * size, moments, peak, gathered, teachers)


def _moments(network: Network, train: TrainConfig) -> int:
    """Numbers that the optimiser remembers: two a weight, of Muon one for each entry of blocks' matrices."""
    return 2 * learnt(network) - (_matrices(network) if train.optimiser == "muon" else 0)


def _matrices(network: Network) -> int:
    """Entries of the blocks' matrices that are trained, but for the modulation's."""
    if network.adapter is None:
        return network.config.depth * network.matrices
    modulation = network.adapter.rank * 7 * network.width if _modulation(network) else 0
    return learnt(network) - modulation * (1 if network.shared else network.config.depth)


def _gathered(network: Network, several: bool) -> float:
    """Bytes of whole weights and gradients under FSDP: a block at work, the next one, what is outside them.

    Gradients of several micro-batches are added up whole before they are reduced.
    """
    block, outside = block_parameters(network), _outside_parameters(network)
    gradients = learnt(network) if several else min(block, learnt(network))
    return float(FULL * (2 * block + outside + gradients))


def moments_flops(count: int, shape: Sequence[int], rank: int) -> float:
    """Multiplications and additions of the widest directions of so many samples (`flow/gaussian.py`).

    Two rounds of two products of all samples with eight directions more than are kept, and one to see them;
    then small products. What makes directions orthogonal is left out.
    """
    size = math.prod(shape)
    width = min(rank + 8, count, size)
    return 2.0 * (5 * count * size * width + count * width * width + size * width * rank)

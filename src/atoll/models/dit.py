"""The diffusion transformer over a token grid of any rank: series, images, video by the same code.

Peebles & Xie, "Scalable Diffusion Models with Transformers" (arXiv 2212.09748), with AdaLN-Zero; or with
AdaLN-Single and cross-attention to a text, as in Chen et al., "PixArt-α" (arXiv 2310.00426).
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atoll.config import NetworkConfig, patches
from atoll.errors import ConfigError
from atoll.models import conditions
from atoll.models.attention import Attention, CrossAttention
from atoll.models.costs import FREQUENCIES

TIME_SCALE = 1000.0
"""Networks see 1000 t, the range for which the frequencies are made."""
STEP_SCALE = 10.0
"""Flow maps see 10 (t - r): their derivative in time is taken, which fast oscillations would drown."""


class Patches(nn.Module):
    """Cut (batch, channels, *grid) into one vector per token, and put tokens together again."""

    def __init__(self, shape: Sequence[int], patch: Sequence[int]) -> None:
        super().__init__()
        channels, *grid = shape
        if not patches.fits(patch, shape):
            raise ConfigError(patches.misfit(patch, shape, "patch"))
        self.channels, self.patch = channels, tuple(patch)
        self.grid = tuple(size // step for size, step in zip(grid, patch, strict=True))
        self.tokens = math.prod(self.grid)
        self.size = channels * math.prod(patch)

    def cut(self, x: Float[Tensor, "batch channels *grid"]) -> Float[Tensor, "batch tokens size"]:
        """One vector (channels, *patch) per token."""
        split = [part for pair in zip(self.grid, self.patch, strict=True) for part in pair]
        rank = len(self.grid)
        x = x.reshape(len(x), self.channels, *split)  # (B, C, n1, p1, n2, p2, …)
        order = [0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2)]
        return x.permute(order).reshape(len(x), self.tokens, self.size)

    def join(self, tokens: Float[Tensor, "batch tokens size"]) -> Float[Tensor, "batch channels *grid"]:
        """The inverse for vectors (*patch, channels), the order in which DiT's last layer writes."""
        rank = len(self.grid)
        x = tokens.reshape(len(tokens), *self.grid, *self.patch, self.channels)
        order = [0, 1 + 2 * rank, *(axis for i in range(rank) for axis in (1 + i, 1 + rank + i))]
        sizes = [n * p for n, p in zip(self.grid, self.patch, strict=True)]
        return x.permute(order).reshape(len(x), self.channels, *sizes)


def positions(grid: Sequence[int], width: int, step: float = 1.0) -> Float[Tensor, "tokens width"]:
    """Fixed sine-cosine positions: an equal part of the width for each axis, the last first, as in DiT."""
    part = width // len(grid)
    frequency = 10_000.0 ** -(torch.arange(part // 2, dtype=torch.float64, device="cpu") / (part // 2))
    # On the CPU whatever the default device: a network whose weights come from a file is built on none.
    ticks = (step * torch.arange(n, dtype=torch.float64, device="cpu") for n in grid)
    axes = torch.meshgrid(*ticks, indexing="ij")
    angles = [axis.reshape(-1, 1) * frequency for axis in reversed(axes)]
    return torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())], dim=1).float()


class TimeEmbedding(nn.Module):
    """Sinusoids of t, then a small MLP."""

    frequency: Tensor

    def __init__(self, width: int, scale: float = TIME_SCALE) -> None:
        super().__init__()
        self.scale, half = scale, FREQUENCIES // 2
        frequency = torch.exp(-math.log(10_000.0) * torch.arange(half, device="cpu") / half)
        self.register_buffer("frequency", frequency, persistent=False)
        self.hidden = nn.Linear(FREQUENCIES, width)
        self.out = nn.Linear(width, width)

    def forward(self, t: Float[Tensor, " batch"]) -> Float[Tensor, "batch width"]:
        """Embed t in [0, 1]."""
        angle = self.scale * t[:, None].float() * self.frequency
        sinusoids = torch.cat([angle.cos(), angle.sin()], dim=1)
        return self.out(F.silu(self.hidden(sinusoids.to(self.hidden.weight.dtype))))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Scale and shift: x (1 + scale) + shift, one of each per sample."""
    return torch.addcmul(shift, x, 1 + scale)


class Modulation(nn.Module):
    """Scales, shifts and gates from time and condition: one layer (AdaLN-Zero).

    Shared, the layer stands once in the trunk and each block adds a table of its own (AdaLN-Single).
    """

    def __init__(self, network: NetworkConfig, parts: int) -> None:
        super().__init__()
        self.parts = parts
        shared = network.modulation == "shared"
        self.table = nn.Parameter(torch.zeros(parts, network.width)) if shared else None
        self.layer = None if shared else nn.Linear(network.width, parts * network.width)

    def forward(self, c: Float[Tensor, "batch channels"]) -> tuple[Tensor, ...]:
        """`parts` values (batch, 1, width) of the time after SiLU or, shared, of what all blocks get."""
        if self.layer is not None:
            return self.layer(c)[:, None].chunk(self.parts, dim=-1)
        assert self.table is not None
        return (c.view(len(c), self.parts, -1) + self.table).chunk(self.parts, dim=1)


class Block(nn.Module):
    """Attention and MLP, each modulated and gated by time and condition; between them, if told, a text."""

    def __init__(self, network: NetworkConfig, text: bool = False) -> None:
        super().__init__()
        width, hidden = network.width, int(network.width * network.mlp)
        self.approximate = "tanh" if network.activation == "gelu-tanh" else "none"
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention = Attention(network)
        self.cross = CrossAttention(network) if text else None
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.modulation = Modulation(network, 6)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        c: Float[Tensor, "batch channels"],
        memory: Float[Tensor, "batch length width"] | None = None,
        mask: Bool[Tensor, "batch 1 1 length"] | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """One block; `c` is what its modulation takes."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(c)  # (B, 1, W) each
        x = torch.addcmul(x, gate_a, self.attention(modulate(self.norm(x), shift_a, scale_a)))
        if self.cross is not None:
            x = x + self.cross(x, memory, mask)
        hidden = F.gelu(self.up(modulate(self.norm(x), shift_m, scale_m)), approximate=self.approximate)
        return torch.addcmul(x, gate_m, self.down(hidden))


class Trunk(nn.Module):
    """What expert and router share: patches, positions, time, condition, blocks."""

    position: Tensor

    def __init__(
        self,
        network: NetworkConfig,
        shape: Sequence[int],
        kind: conditions.Kind = "none",
        classes: int = 0,
        text: int = 0,
        steps: bool = False,
        clusters: int = 0,
    ) -> None:
        super().__init__()
        cross = kind == "text" and network.text != "pooled"
        self.patches = Patches(shape, network.patch_of(shape))
        self.embed = nn.Linear(self.patches.size, network.width)
        self.register_buffer("position", positions(self.patches.grid, network.width), persistent=False)
        self.time = TimeEmbedding(network.width)
        self.step = TimeEmbedding(network.width, STEP_SCALE) if steps else None
        self.condition = conditions.build(kind, classes, 0 if cross else text, network.width)
        self.cluster = nn.Embedding(clusters + 1, network.width) if clusters else None
        self.text = conditions.TextMemory(text, network.width, network.text == "cross-mlp") if cross else None
        shared = network.modulation == "shared"
        self.shared = nn.Linear(network.width, 6 * network.width) if shared else None
        self.blocks = nn.ModuleList(Block(network, cross) for _ in range(network.depth))
        self.norm = nn.LayerNorm(network.width, elementwise_affine=False, eps=1e-6)
        self.modulation = Modulation(network, 2)
        self.recompute = False
        """In training, keep only the inputs of the blocks and compute the rest again when it is needed."""

    def tokens(self, x_t: Float[Tensor, "batch channels *grid"]) -> Float[Tensor, "batch tokens width"]:
        """Embed the patches of x_t, in the arithmetic of the weights."""
        return self.embed(self.patches.cut(x_t).to(self.embed.weight.dtype)) + self.position

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens width"],
        t: Float[Tensor, " batch"],
        condition: conditions.Condition,
        r: Float[Tensor, " batch"] | None = None,
        cluster: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """Blocks and a last modulated norm; a flow map is told r, where a step ends, by default at once.

        A network that knows clusters by number is told one of them, by default the extra one for "not told".
        """
        c = self.time(t) + self.condition(condition)
        if self.step is not None:
            c = c + self.step(torch.zeros_like(t) if r is None else t - r)
        if self.cluster is not None:
            last = self.cluster.num_embeddings - 1
            c = c + self.cluster(torch.full_like(t, last, dtype=torch.long) if cluster is None else cluster)
        memory, mask = (None, None) if self.text is None else self.text(condition)
        for_blocks, for_last = self.modulators(c)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                tokens = checkpoint(
                    block, tokens, for_blocks, memory, mask, use_reentrant=False, preserve_rng_state=False
                )
            else:
                tokens = block(tokens, for_blocks, memory, mask)
        shift, scale = self.modulation(for_last)
        return modulate(self.norm(tokens), shift, scale)

    def modulators(self, c: Float[Tensor, "batch width"]) -> tuple[Tensor, Tensor]:
        """What the modulations of the blocks and of the last norm take; shared as PixArt-α does it."""
        if self.shared is None:
            return F.silu(c), F.silu(c)
        return self.shared(F.silu(c)), torch.cat([c, c], dim=1)

    def initialise(self) -> None:
        """DiT's initial weights: Xavier, and zero where a block must start as the identity.

        None without storage, as of a network that takes its weights from a file: torch would load its
        compiler for a `normal_` there, which takes longer than all the rest.
        """
        if self.embed.weight.is_meta:
            return
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, conditions.TextMemory):
                nn.init.normal_(module.null, std=0.02)
        for layer in (self.time.hidden, self.time.out):
            nn.init.normal_(layer.weight, std=0.02)
        if self.step is not None:  # zero: a flow map starts as the velocity that it is made from
            nn.init.zeros_(self.step.out.weight)
        for module in self.modules():
            if isinstance(module, Modulation) and module.layer is not None:
                nn.init.zeros_(module.layer.weight)
            elif isinstance(module, CrossAttention):
                nn.init.zeros_(module.out.weight)
        if self.shared is not None:
            nn.init.zeros_(self.shared.weight)


def product(network: nn.Module, samples: int) -> float:
    """Multiplications of a block's smallest matrix product; 0 for what is no transformer of ours."""
    trunk = getattr(getattr(network, "network", network), "trunk", None)
    if trunk is None:
        return 0.0
    smallest = min(layer.weight.numel() for layer in (trunk.blocks[0].attention.out, trunk.blocks[0].up))
    return float(samples * trunk.patches.tokens * smallest)


class DiT(nn.Module):
    """An expert: predicts one value per entry of x_t."""

    def __init__(
        self,
        network: NetworkConfig,
        shape: Sequence[int],
        kind: conditions.Kind = "none",
        classes: int = 0,
        text: int = 0,
        steps: bool = False,
        clusters: int = 0,
    ) -> None:
        """Build a network; `text` is the width of the states of a text, `steps` makes it a flow map.

        With `clusters` it can be told, besides the condition, from which of so many a sample comes.
        """
        super().__init__()
        self.trunk = Trunk(network, shape, kind, classes, text, steps, clusters)
        self.head = nn.Linear(network.width, self.trunk.patches.size)
        self.trunk.initialise()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        x_t: Float[Tensor, "batch channels *grid"],
        t: Float[Tensor, " batch"],
        condition: conditions.Condition = None,
        r: Float[Tensor, " batch"] | None = None,
        cluster: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch channels *grid"]:
        """Predict from x_t and t; a flow map, the average velocity from t down to r."""
        tokens = self.trunk(self.trunk.tokens(x_t), t, condition, r, cluster)  # (B, N, W)
        return self.trunk.patches.join(self.head(tokens))  # (B, C, *grid)

"""Attention: of the tokens of a sample to each other, and to the states of a text."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from atoll.config import NetworkConfig
from atoll.models.costs import FEW_KEYS


def attend(
    q: Float[Tensor, "batch heads queries channels"],
    k: Float[Tensor, "batch heads keys channels"],
    v: Float[Tensor, "batch heads keys channels"],
    mask: Bool[Tensor, "batch 1 1 keys"] | None = None,
) -> Float[Tensor, "batch heads queries channels"]:
    """softmax(q kᵀ / √channels) v; in bfloat16 on a CPU as two matrix products.

    Torch's fused attention does not use a CPU's units for bfloat16 well: with its gradient it takes two to
    five times as long (`python -m benchmarks.attention`). Both round weights to bfloat16; here scores, too.
    """
    if q.device.type != "cpu" or q.dtype != torch.bfloat16 or k.shape[2] > FEW_KEYS:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = (q * q.shape[-1] ** -0.5).contiguous() @ k.transpose(-1, -2).contiguous()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v.contiguous()


class Attention(nn.Module):
    """Every token asks all tokens of its sample."""

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        self.heads = network.heads
        self.qkv = nn.Linear(network.width, 3 * network.width)
        self.out = nn.Linear(network.width, network.width)
        self.norm = HeadNorm(network) if network.qk_norm else None
        self.tokens: nn.Module | None = None
        """Learnt tokens of an adapter, which queries (batch, heads, tokens, channels) ask besides."""

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        """Self-attention over the tokens of each sample."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # (B, H, N, D) each
        if self.norm is not None:
            q, k = self.norm(q, k)
        attended = attend(q, k, v)
        if self.tokens is not None:
            attended = attended + self.tokens(q)
        return self.out(attended.transpose(1, 2).reshape(batch, tokens, width))


class CrossAttention(nn.Module):
    """Every token asks the states of a text (PixArt-α §2.3)."""

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        self.heads = network.heads
        self.q = nn.Linear(network.width, network.width)
        self.kv = nn.Linear(network.width, 2 * network.width)
        self.out = nn.Linear(network.width, network.width)
        self.norm = HeadNorm(network) if network.qk_norm else None

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        memory: Float[Tensor, "batch length width"],
        mask: Bool[Tensor, "batch 1 1 length"],
    ) -> Float[Tensor, "batch tokens width"]:
        """Attention from the tokens of each sample to the states of its text."""
        batch, tokens, width = x.shape
        q = self.q(x).view(batch, tokens, self.heads, -1).transpose(1, 2)  # (B, H, N, D)
        kv = self.kv(memory).view(batch, memory.shape[1], 2, self.heads, -1)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind()  # (B, H, M, D) each
        if self.norm is not None:
            q, k = self.norm(q, k)
        attended = attend(q, k, v, mask)
        return self.out(attended.transpose(1, 2).reshape(batch, tokens, width))


class HeadNorm(nn.Module):
    """Queries and keys of every head to unit size, with one learned scale per channel of a head."""

    def __init__(self, network: NetworkConfig) -> None:
        super().__init__()
        self.q = nn.RMSNorm(network.width // network.heads, eps=1e-6)
        self.k = nn.RMSNorm(network.width // network.heads, eps=1e-6)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalise both, in the arithmetic that they come in."""
        return _normalised(q, self.q), _normalised(k, self.k)


def _normalised(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    return F.rms_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.eps)

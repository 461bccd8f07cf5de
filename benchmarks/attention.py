"""Attention in bfloat16 on a CPU: two matrix products against torch's own fused attention.

Forward alone, as in sampling, and with the gradient, as in training; interleaved, the best of each counts.
On a GPU Atoll asks torch's own, so that there is nothing to compare.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.models.attention import attend
from atoll.models.costs import FEW_KEYS
from atoll.sampling import memory
from benchmarks._shown import show

SIZES = {
    "49 tokens, 4 heads of 24": (8, 49, 4, 24),
    "64 tokens, 6 heads of 32": (32, 64, 6, 32),
    "256 tokens, 6 heads of 64": (16, 256, 6, 64),
    f"{FEW_KEYS} tokens, 6 heads of 64": (8, FEW_KEYS, 6, 64),
}
"""Batch, tokens, heads, channels of a head; queries, keys and values lie as a layer of ours writes them."""
REPEATS = 12
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
WAYS: dict[str, Attention] = {"atoll": attend, "torch": F.scaled_dot_product_attention}


def forward(attention: Attention, qkv: Tensor) -> None:
    with torch.inference_mode():
        attention(*qkv.permute(2, 0, 3, 1, 4).unbind())


def gradient(attention: Attention, qkv: Tensor) -> None:
    attended = attention(*qkv.permute(2, 0, 3, 1, 4).unbind())
    torch.autograd.backward(attended, torch.ones_like(attended))
    qkv.grad = None


def seconds(action: Callable[[Attention, Tensor], None], qkv: Tensor) -> dict[str, float]:
    """The best time of each way, after one to get warm."""
    best = dict.fromkeys(WAYS, float("inf"))
    for repeat in range(REPEATS + 1):
        for name, attention in WAYS.items():
            since = time.perf_counter()
            action(attention, qkv)
            if repeat:
                best[name] = min(best[name], time.perf_counter() - since)
    return best


def measure() -> dict[str, Any]:
    memory.keep()  # as in training and in sampling
    times = {}
    for what, (batch, tokens, heads, channels) in SIZES.items():
        qkv = torch.randn(batch, tokens, 3, heads, channels, dtype=torch.bfloat16, requires_grad=True)
        times[f"forward, {what}"] = seconds(forward, qkv)
        times[f"with its gradient, {what}"] = seconds(gradient, qkv)
    return {
        "benchmark": "attention",
        "ratios": {f"torch's own, {what}": took["torch"] / took["atoll"] for what, took in times.items()},
        "detail": {"seconds": times, "threads": torch.get_num_threads()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    show(measure(), parser.parse_args().json)


if __name__ == "__main__":
    main()

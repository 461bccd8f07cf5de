"""The device that a benchmark runs on: waiting for it, its peak, and a network of its size."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from atoll.config import NetworkConfig, TrainConfig
from atoll.config.network import SIZES
from atoll.models import costs
from atoll.plan import DEVICES

ROOM = 0.8
"""Share of a card's free memory that a benchmark plans to fill."""
LATENT = (4, 32, 32)
CLASSES = 1000


class Sized(NamedTuple):
    """What a card trains: a size of the papers on latents of 256 x 256 pixels, and a batch that fits."""

    size: str
    batch: int

    @property
    def network(self) -> NetworkConfig:
        """Its settings."""
        return NetworkConfig(size=f"{self.size}/2")

    @property
    def counted(self) -> costs.Network:
        """What its costs depend on."""
        return costs.Network(self.network, LATENT, "class", CLASSES)


def sized(free: float, *, half: bool = True, batches: tuple[int, ...] = (256, 128, 64, 32)) -> Sized:
    """The largest network of the papers that trains with at least 32 samples in so much memory."""
    for size in reversed(SIZES):
        for batch in batches:
            if needed(Sized(size, batch), half=half) <= ROOM * free:
                return Sized(size, batch)
    small = next(
        batch for batch in (16, 8, 4, 2, 1) if needed(Sized("S", batch), half=half) <= free or batch == 1
    )
    return Sized("S", small)


def needed(one: Sized, *, half: bool = True) -> float:
    """Bytes that the plan counts for its training."""
    return costs.memory(one.counted, TrainConfig(batch=one.batch), half=half).total


def sheet(name: str) -> float | None:
    """Peak FLOP/s by the data sheet of a card that torch calls so, if we know it."""
    words = name.upper().replace("-", " ").split()
    memory = {word for word in words if word.endswith("GB")}
    for known, device in DEVICES.items():
        *model, size = known.upper().split("-") if known.endswith("GB") else [*known.upper().split("-"), ""]
        if all(part in words for part in model) and (not size or not memory or size in memory):
            return device.teraflops * 1e12
    return None


def wait(device: torch.device) -> None:
    """Until the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(action: Callable[[], Any], device: torch.device, repeats: int = 1) -> float:
    """The best time of an action, from an idle device to an idle device."""
    best = float("inf")
    for _ in range(repeats):
        wait(device)
        since = time.perf_counter()
        action()
        wait(device)
        best = min(best, time.perf_counter() - since)
    return best


def peak(precision: str, device: torch.device, repeats: int = 12) -> float:
    """FLOP/s of a large matrix product, best of many."""
    side = 8192 if device.type == "cuda" else 1024
    a = torch.randn(side, side, device=device).to(getattr(torch, precision))
    return 2 * side**3 / seconds(lambda: torch.mm(a, a), device, repeats)


def peak_memory(device: torch.device) -> int:
    """Bytes that tensors have taken on the card at most; 0 on a CPU, which has other programs' as well."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the card."""
    return torch.cuda.mem_get_info(device)[0]

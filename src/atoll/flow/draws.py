"""Random numbers as a function of (seed, what for, index), drawn on the CPU.

Wall time, worker and history of the process never enter, so that a step or a sample can be made again
anywhere, alone.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def generator(seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """A CPU generator for one purpose and one index."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))


class TrainingDraws(NamedTuple):
    """The random numbers of one training step."""

    t: Tensor
    """Times, uniform in [0, 1)."""
    noise: Tensor
    """Standard normal, shaped like the samples."""
    dropped: Tensor
    """Which samples hide their condition."""


def training_draws(seed: int, job: str, step: int, shape: Sequence[int], dropout: float) -> TrainingDraws:
    """Draw what one step of one job needs for a batch of this shape."""
    source = generator(seed, job, step)
    t = torch.rand(shape[0], generator=source)
    noise = torch.randn(*shape, generator=source)
    return TrainingDraws(t, noise, torch.rand(shape[0], generator=source) < dropout)


def sample_noise(seed: int, indices: Sequence[int], shape: Sequence[int]) -> Tensor:
    """The starting noise of samples number `indices`; each depends on (seed, its index) alone."""
    return torch.stack([torch.randn(*shape, generator=generator(seed, "noise", i)) for i in indices])


def sample_uniform(seed: int, indices: Sequence[int], purpose: str) -> Tensor:
    """One uniform number for each of the samples number `indices`."""
    return torch.cat([torch.rand(1, generator=generator(seed, purpose, i)) for i in indices])

"""What was sampled, and by whom."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Samples with the weights of those who made them."""

    x_0: Float[Tensor, "num channels *grid"]
    weights: Float[Tensor, "asked num experts"]
    """The weight of each expert each time that the velocity was asked for, from noise to data."""
    disagreement: Float[Tensor, "asked num"]
    """How far the active experts were apart: Σ_k w_k |v_k - v|² / |v|²; zero where one was asked."""
    times: tuple[float, ...]
    """The times at which the velocity was asked for."""
    strategy: str
    certainty: float | None
    """How sure the router was at t = 1, where that was looked at."""
    moved: Float[Tensor, "num experts"] | None = None
    """How much of the way from noise to sample each expert went, where `provenance` asks for it; signed."""

    def __len__(self) -> int:
        return len(self.x_0)

    @property
    def shares(self) -> Float[Tensor, "num experts"]:
        """How much of each sample's way each expert had; every row sums to one."""
        return self.weights.mean(0)

    @property
    def expert(self) -> Int[Tensor, " num"]:
        """The expert that had the largest share in each sample."""
        return self.shares.argmax(1)

    @property
    def switches(self) -> Int[Tensor, " num"]:
        """How often the leading expert of each sample changed on the way."""
        leading = self.weights.argmax(2)
        return (leading[1:] != leading[:-1]).sum(0)


def joined(parts: Sequence[tuple[Sequence[int], Samples]]) -> Samples:
    """Parts of one request, each with the numbers of its samples, in the order of those numbers."""
    order = torch.tensor([index for indices, _ in parts for index in indices]).argsort()
    samples = [part for _, part in parts]
    order = order.to(samples[0].x_0.device)
    moved = [part.moved for part in samples if part.moved is not None]
    return Samples(
        x_0=torch.cat([part.x_0 for part in samples])[order],
        weights=torch.cat([part.weights for part in samples], dim=1)[:, order],
        disagreement=torch.cat([part.disagreement for part in samples], dim=1)[:, order],
        times=samples[0].times,
        strategy=samples[0].strategy,
        certainty=samples[0].certainty,
        moved=torch.cat(moved)[order] if len(moved) == len(samples) else None,
    )

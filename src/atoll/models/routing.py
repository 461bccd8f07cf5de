"""The router at work: when it is asked, whom it sends samples to, and how sure it is."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.flow import path
from atoll.models.conditions import Condition

Posterior = Callable[[Tensor, Tensor], Tensor]
"""p(k | x_t, t) of a batch."""

TOLERANCE = 1e-5
"""A change of the posterior that changes nothing."""
SURE = 0.9
"""From this certainty at t = 1 on, the condition alone tells the cluster."""


@dataclass(frozen=True)
class Band:
    """The times between which the router decides; outside them asking it again changes nothing."""

    low: float = 0.0
    """Below this every sample has one expert, and keeps it."""
    high: float = 1.0
    """Above this the noise says nothing: the posterior is what the condition alone says."""


def in_band(posterior: Posterior, band: Band) -> Posterior:
    """The same posterior, asked only where it can change.

    Above the band it is that of t = 1; below it the last one, once every sample of the batch has its expert:
    a probability is a martingale along the way, so what is certain stays so. For one batch, from 1 to 0.
    """
    last: Tensor | None = None

    def ask(x_t: Tensor, t: Tensor) -> Tensor:
        nonlocal last
        now = float(t[0])
        settled = last is not None and (now > band.high or (now < band.low and _decided(last)))
        if last is None or not settled:
            last = posterior(x_t, t)
        return last

    return ask


def _decided(posterior: Tensor) -> bool:
    return bool((1 - posterior.max(1).values).max() <= TOLERANCE)


@torch.inference_mode()
def measure_band(
    router: nn.Module,
    x_0: Float[Tensor, "batch *sample"],
    noise: Float[Tensor, "batch *sample"],
    condition: Condition,
    points: int = 50,
) -> Band:
    """Where the router decides, on real samples: the posterior is constant above and certain below."""
    times = [point / points for point in range(points + 1)]
    posteriors = [_posterior(router, x_0, noise, condition, t) for t in times]
    end = posteriors[-1]
    moved = [float((p - end).abs().max()) for p in posteriors]
    unsure = [float(1 - p.max(1).values.min()) for p in posteriors]
    high = min(t for i, t in enumerate(times) if all(m <= TOLERANCE for m in moved[i:]))
    below = [t for i, t in enumerate(times) if all(u <= TOLERANCE for u in unsure[: i + 1])]
    low = max(below, default=0.0)
    # a posterior that is certain from the start has no band at all, whichever end it is looked at from
    return Band(min(low, high), high)


def _posterior(router: nn.Module, x_0: Tensor, noise: Tensor, condition: Condition, t: float) -> Tensor:
    times = torch.full((len(x_0),), t, device=x_0.device)
    return router(path.point(x_0, noise, times), times, condition).float().softmax(1)


def certainty(posterior: Float[Tensor, "batch experts"]) -> float:
    """How sure the router is, on the average: the mean of the largest probability."""
    return float(posterior.max(1).values.mean())

"""The router at work: when it is asked, whom it sends samples to, and how sure it is."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.flow import path
from atoll.models.conditions import Condition

Posterior = Callable[[Tensor, Tensor, Tensor], Tensor]
"""p(k | x_t, t) of some samples of a batch, which are told by their rows in it."""
PosteriorAt = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""The same at one time for all, which is told as a number as well."""

TOLERANCE = 1e-5
"""A change of the posterior that changes nothing."""
KEPT = 10 * TOLERANCE
"""So little may a posterior move that was certain."""
SURE = 0.9
"""From this certainty at t = 1 on, the condition alone tells the cluster."""


@dataclass(frozen=True)
class Band:
    """The times between which the router decides; outside them asking it again changes nothing."""

    low: float = 0.0
    """Below this a sample that has its expert keeps it."""
    high: float = 1.0
    """Above this the noise says nothing: the posterior is what the condition alone says."""

    def holds(self, t: float) -> bool:
        """Whether the router decides at this time."""
        return self.low <= t <= self.high


def in_band(posterior: Posterior, band: Band) -> PosteriorAt:
    """The same posterior, asked only where it can change; otherwise the very answer that was given last.

    Above the band it is that of t = 1; below it the router is asked about those samples alone that have no
    expert yet: a probability is a martingale along the way, so what is certain stays so. For one batch,
    from 1 to 0.
    """
    last: Tensor | None = None
    settled = False

    def ask(x_t: Tensor, t: Tensor, rows: Tensor, now: float) -> Tensor:
        nonlocal last, settled
        if last is None or band.holds(now):
            last = posterior(x_t, t, rows)
        elif now < band.low and not settled:
            open_rows = (~decided(last)).nonzero()[:, 0]
            settled = not len(open_rows)
            if not settled:
                answers = posterior(x_t[open_rows], t[open_rows], rows[open_rows])
                last = last.index_copy(0, open_rows, answers)
        return last

    return ask


def decided(posterior: Tensor) -> Tensor:
    """Which samples have their expert."""
    return 1 - posterior.max(-1).values <= TOLERANCE


@torch.inference_mode()
def measure_band(
    router: nn.Module,
    x_0: Float[Tensor, "batch *sample"],
    noise: Float[Tensor, "batch *sample"],
    condition: Condition,
    points: int = 50,
) -> Band:
    """Where the router decides, on real samples: the posterior is constant above; below, certain is final.

    A learnt router may be sure too early and change its mind; the band begins where none of these samples
    saw that.
    """
    times = [point / points for point in range(points + 1)]
    posteriors = torch.stack([_posterior(router, x_0, noise, condition, t) for t in times])
    moved = (posteriors - posteriors[-1]).abs().amax((1, 2)).tolist()
    high = min(t for i, t in enumerate(times) if all(m <= TOLERANCE for m in moved[i:]))
    certain, low = decided(posteriors), 0.0
    for i, t in enumerate(times):
        changed = (posteriors[: i + 1, certain[i]] - posteriors[i, certain[i]]).abs()
        if changed.numel() and float(changed.max()) > KEPT:
            break
        low = t if changed.numel() else low
    return Band(min(low, high), high)


def _posterior(router: nn.Module, x_0: Tensor, noise: Tensor, condition: Condition, t: float) -> Tensor:
    times = torch.full((len(x_0),), t, device=x_0.device)
    return router(path.point(x_0, noise, times), times, condition).float().softmax(1)


def certainty(posterior: Float[Tensor, "batch experts"]) -> float:
    """How sure the router is, on the average: the mean of the largest probability."""
    return float(posterior.max(1).values.mean())

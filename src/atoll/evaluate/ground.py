"""What a run would be without its experts: the base that values are measured against."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.credit.target import gaussian_velocity
from atoll.models.conditions import Condition
from atoll.runs import Run, inputs
from atoll.sampling import building

Velocity = Callable[[Tensor, Tensor, Condition], Tensor]
"""A velocity at x_t and t, given what is told."""

SPREAD = "mean and spread of the held-out samples"


class Ground(NamedTuple):
    """A base: its name for people, and its velocity."""

    name: str
    velocity: Velocity
    network: bool
    """Whether asking it costs what asking an expert costs."""


def ground(run: Run, device: torch.device, x_0: Tensor, base: str | None = None) -> Ground:
    """The network that all experts began with, where there is one; else all that two moments tell.

    By default as `credit.base` says.

    An expert that never left its beginning is then worth nothing. Without a common beginning the base is the
    Gaussian with the mean and the variance of every value of the held-out samples: nobody's work, and nothing
    that an expert could change to look better beside it. Values against it are larger, since they hold what
    any network on all data would have learnt as well.
    """
    network = beginning(run, device) if (base or run.config.credit.base) == "start" else None
    if network is not None:
        return Ground(run.start.path.name if run.config.start else "expert.init", network, True)
    return gaussian(x_0.to(device))


def beginning(run: Run, device: torch.device) -> Velocity | None:
    """The network that all experts began with; None where they did not, or it is not here."""
    begins = [inputs.beginning(run, index) for index in range(run.config.partition.clusters)]
    first = begins[0]
    if first is None or not all(one is not None and one.path == first.path for one in begins):
        return None
    network: Velocity = building.lone(first, device).experts[0]
    return network


def gaussian(x_0: Tensor) -> Ground:
    """The Gaussian with the moments of some samples."""
    mean, variance = x_0.double().mean(0).to(x_0.dtype), x_0.double().var(0, correction=0).to(x_0.dtype)

    def velocity(x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
        return gaussian_velocity(x_t, t, mean, variance)

    return Ground(SPREAD, velocity, False)

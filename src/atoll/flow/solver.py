"""Integrate a velocity from noise to data; a solver knows nothing of where the velocity comes from."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Velocity = Callable[[Tensor, Tensor], Tensor]
"""v(x_t, t) for a batch of points and their times."""

Step = Callable[[Any, Tensor, float, float], Tensor]
"""One step of a solver: velocity, or average velocity of a flow map, x_t, t, the next t."""


def times(steps: int, shift: float = 1.0) -> list[float]:
    """The grid of steps + 1 times from 1 (noise) to 0 (data): t' = s t / (1 + (s - 1) t).

    A shift above 1 spends more steps near the noise, as large pictures need (Esser et al. 2024, eq. 23).
    """
    even = (1 - step / steps for step in range(steps + 1))
    return [shift * t / (1 + (shift - 1) * t) for t in even]


def asked(solver: str, steps: int, shift: float = 1.0) -> list[float]:
    """The times at which a solver asks for the velocity, in order, before it does.

    Heun's method asks at both ends of a step but for t = 0 (Karras et al. 2022, alg. 1), the others at its
    start.
    """
    grid = times(steps, shift)
    if solver != "heun":
        return grid[:-1]
    return [t for pair in itertools.pairwise(grid) for t in pair if t > 0]


def euler(
    velocity: Velocity, x_t: Float[Tensor, "batch *sample"], t: float | Tensor, t_next: float | Tensor
) -> Tensor:
    """One step of order one: x + (t' - t) v(x, t) (Euler); each row may be at a time of its own."""
    span = t_next - t
    if isinstance(span, Tensor):
        span = span.view(-1, *[1] * (x_t.ndim - 1))
    return x_t + span * velocity(x_t, _batch_of(t, x_t))


def heun(velocity: Velocity, x_t: Float[Tensor, "batch *sample"], t: float, t_next: float) -> Tensor:
    """One step of order two: the mean of the velocities at both ends (Heun; Karras et al. 2022, alg. 1).

    The step that ends at data is Euler's, since no velocity is defined, or was learnt, at t = 0 itself.
    """
    v = velocity(x_t, _batch_of(t, x_t))
    guess = x_t + (t_next - t) * v
    if t_next == 0:
        return guess
    return x_t + (t_next - t) / 2 * (v + velocity(guess, _batch_of(t_next, x_t)))


def jump(
    average: Callable[[Tensor, Tensor, Tensor], Tensor],
    x_t: Float[Tensor, "batch *sample"],
    t: float,
    t_next: float,
) -> Tensor:
    """One step of a flow map, x_r = x_t - (t - r) u(x_t, t, r), of any length (arXiv 2505.13447, eq. 12)."""
    return x_t + (t_next - t) * average(x_t, _batch_of(t, x_t), _batch_of(t_next, x_t))


class DPM:
    """DPM-Solver++(2M) on the linear path: order two with one velocity per step, from the step before.

    Lu et al. 2022, alg. 2, with α = 1 - t, σ = t, data prediction x_0 = x_t - t v and λ = log(α / σ). λ is
    infinite at both ends, so the first step, the one after it, and the last are of order one.
    """

    def __init__(self) -> None:
        self.before: tuple[Tensor, float] | None = None
        """The data prediction of the last step and its time."""

    def __call__(
        self, velocity: Velocity, x_t: Float[Tensor, "batch *sample"], t: float, t_next: float
    ) -> Tensor:
        """One step; an instance is good for one integration."""
        x_0 = x_t - t * velocity(x_t, _batch_of(t, x_t))
        direction = x_0
        if self.before is not None and self.before[1] < 1 and t_next > 0:
            previous, t_before = self.before
            ratio = (_log_snr(t) - _log_snr(t_before)) / (_log_snr(t_next) - _log_snr(t))
            direction = x_0 + (x_0 - previous) / (2 * ratio)
        self.before = x_0, t
        decay = t_next / t
        return decay * x_t + ((1 - t_next) - (1 - t) * decay) * direction


def _log_snr(t: float) -> float:
    return math.log((1 - t) / t)


SOLVERS: dict[str, Callable[[], Step]] = {"euler": lambda: euler, "heun": lambda: heun, "dpm++": DPM}
"""A fresh step of each solver by name; some remember the step before."""


def integrate(
    velocity: Callable[..., Tensor],
    noise: Float[Tensor, "batch *sample"],
    steps: int,
    solver: Step = euler,
    on_step: Callable[[int], None] | None = None,
    shift: float = 1.0,
) -> Float[Tensor, "batch *sample"]:
    """Follow dx/dt = v(x, t) from noise at t = 1 to data at t = 0 (DDM §3.1)."""
    x_t = noise
    for step, (t, t_next) in enumerate(itertools.pairwise(times(steps, shift))):
        x_t = solver(velocity, x_t, t, t_next)
        if on_step is not None:
            on_step(step + 1)
    return x_t


def _batch_of(t: float | Tensor, x_t: Tensor) -> Tensor:
    """One time for all; at least float32, since half precision cannot tell neighbouring times apart."""
    if isinstance(t, Tensor):
        return t
    return torch.full((len(x_t),), t, device=x_t.device, dtype=torch.promote_types(x_t.dtype, torch.float32))

"""Integrate a velocity from noise to data; a solver knows nothing of where the velocity comes from."""

import itertools
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Velocity = Callable[[Tensor, Tensor], Tensor]
"""v(x_t, t) for a batch of points and their times."""

Step = Callable[[Velocity, Tensor, float, float], Tensor]
"""One step of a solver: velocity, x_t, t, the next t."""


def times(steps: int) -> list[float]:
    """The even grid of steps + 1 times from 1 (noise) to 0 (data)."""
    return [1 - step / steps for step in range(steps + 1)]


def euler(velocity: Velocity, x_t: Float[Tensor, "batch *sample"], t: float, t_next: float) -> Tensor:
    """One step of order one: x + (t' - t) v(x, t) (Euler)."""
    return x_t + (t_next - t) * velocity(x_t, _batch_of(t, x_t))


def heun(velocity: Velocity, x_t: Float[Tensor, "batch *sample"], t: float, t_next: float) -> Tensor:
    """One step of order two: the mean of the velocities at both ends (Heun; Karras et al. 2022, alg. 1)."""
    v = velocity(x_t, _batch_of(t, x_t))
    guess = x_t + (t_next - t) * v
    return x_t + (t_next - t) / 2 * (v + velocity(guess, _batch_of(t_next, x_t)))


SOLVERS: dict[str, Step] = {"euler": euler, "heun": heun}


def integrate(
    velocity: Velocity,
    noise: Float[Tensor, "batch *sample"],
    steps: int,
    solver: Step = euler,
    on_step: Callable[[int], None] | None = None,
) -> Float[Tensor, "batch *sample"]:
    """Follow dx/dt = v(x, t) from noise at t = 1 to data at t = 0 (DDM §3.1)."""
    x_t = noise
    grid = times(steps)
    for step, (t, t_next) in enumerate(itertools.pairwise(grid)):
        x_t = solver(velocity, x_t, t, t_next)
        if on_step is not None:
            on_step(step + 1)
    return x_t


def _batch_of(t: float, x_t: Tensor) -> Tensor:
    """One time for all; at least float32, since half precision cannot tell neighbouring times apart."""
    return torch.full((len(x_t),), t, device=x_t.device, dtype=torch.promote_types(x_t.dtype, torch.float32))

"""Integrate a velocity from noise to data; a solver knows nothing of where the velocity comes from."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.flow.path import expand

Velocity = Callable[[Tensor, Tensor], Tensor]
"""v(x_t, t) for a batch of points and their times."""

Step = Callable[[Any, Tensor, float, float], Tensor]
"""One step of a solver: velocity, or average velocity of a flow map, x_t, t, the next t."""


def times(steps: int, shift: float = 1.0, begin: float = 1.0) -> list[float]:
    """The grid of steps + 1 times from where one begins, 1 is noise, to 0: t' = s t / (1 + (s - 1) t).

    A shift above 1 spends more steps near the noise, as large pictures need (Esser et al. 2024, eq. 23).
    """
    even = (1 - step / steps for step in range(steps + 1))
    return [begin * shift * t / (1 + (shift - 1) * t) for t in even]


def asked(solver: str, steps: int, shift: float = 1.0, begin: float = 1.0) -> list[float]:
    """The times at which a solver asks for the velocity, in order, before it does.

    Heun's method asks at both ends of a step but for t = 0 (Karras et al. 2022, alg. 1), the others at its
    start.
    """
    grid = times(steps, shift, begin)
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


class Move(NamedTuple):
    """What a solver asks at one time and does with the answer v: x' = a x + b v + c m, then m' = d x + e v.

    The memory m is whatever a solver keeps from one question to the next; at first it is zero.
    """

    t: float
    """The time of the question."""
    t_next: float
    """The end of the step; a flow map is asked about it as well."""
    a: float
    b: float
    c: float
    d: float
    e: float

    @property
    def remembers(self) -> bool:
        """Whether it does more than x' = x + b v (see `moves` for the §)."""
        return bool(self.c or self.d or self.e or self.a != 1)


def moves(solver: str, steps: int, shift: float = 1.0, begin: float = 1.0) -> list[Move]:
    """A whole integration as one linear recursion with a coefficient for everything, known beforehand.

    So rows of different solvers, at different steps, move together. Euler's method and a flow map's step
    need no memory (arXiv 2505.13447, eq. 12); Heun's keeps x + h v / 2 (Karras et al. 2022, alg. 1);
    DPM-Solver++(2M) its prediction x - t v of the data (Lu et al. 2022, alg. 2).
    """
    grid = list(itertools.pairwise(times(steps, shift, begin)))
    if solver == "dpm++":
        return [_multistep(None if n == 0 else grid[n - 1][0], t, end) for n, (t, end) in enumerate(grid)]
    if solver == "heun":
        return [move for t, end in grid for move in _heun_moves(t, end)]
    return [Move(t, end, 1, end - t, 0, 0, 0) for t, end in grid]


def _heun_moves(t: float, end: float) -> list[Move]:
    h = end - t
    if end == 0:
        return [Move(t, end, 1, h, 0, 0, 0)]
    return [Move(t, end, 1, h, 0, 1, h / 2), Move(end, end, 0, h / 2, 1, 0, 0)]


def _multistep(before: float | None, t: float, end: float) -> Move:
    """With x_0 = x - t v and k = 1 / (2 r): x' = σ'/σ x + γ ((1 + k) x_0 - k m)."""
    k = 0.0
    if before is not None and before < 1 and end > 0:
        k = (_log_snr(end) - _log_snr(t)) / (_log_snr(t) - _log_snr(before)) / 2
    decay = end / t
    gain = (1 - end) - (1 - t) * decay
    return Move(t, end, decay + gain * (1 + k), -gain * (1 + k) * t, -gain * k, 1, -t)


def moved(
    coefficients: Float[Tensor, "batch 7"],
    x_t: Float[Tensor, "batch *sample"],
    velocity: Float[Tensor, "batch *sample"],
    memory: Float[Tensor, "batch *sample"] | None,
) -> tuple[Float[Tensor, "batch *sample"], Float[Tensor, "batch *sample"] | None]:
    """One move of every row: x' = a x + b v + c m and m' = d x + e v (see `moves` for the §).

    Without memory where no row has use for any: c, d and e are zero, and a is one, as in Euler's method.
    """
    if memory is None:
        return x_t + expand(coefficients[:, 3], x_t) * velocity, None
    wide = coefficients.view(len(x_t), -1, *[1] * (x_t.ndim - 1))
    a, b, c, d, e = wide[:, 2:].unbind(1)
    return a * x_t + b * velocity + c * memory, d * x_t + e * velocity


def integrate(
    velocity: Callable[..., Tensor],
    noise: Float[Tensor, "batch *sample"],
    steps: int,
    solver: Step = euler,
    on_step: Callable[[int], None] | None = None,
    shift: float = 1.0,
    begin: float = 1.0,
) -> Float[Tensor, "batch *sample"]:
    """Follow dx/dt = v(x, t) from noise at t = 1, or points where one begins, to data at t = 0 (DDM §3.1)."""
    x_t = noise
    for step, (t, t_next) in enumerate(itertools.pairwise(times(steps, shift, begin))):
        x_t = solver(velocity, x_t, t, t_next)
        if on_step is not None:
            on_step(step + 1)
    return x_t


def _batch_of(t: float | Tensor, x_t: Tensor) -> Tensor:
    """One time for all; at least float32, since half precision cannot tell neighbouring times apart."""
    if isinstance(t, Tensor):
        return t
    return torch.full((len(x_t),), t, device=x_t.device, dtype=torch.promote_types(x_t.dtype, torch.float32))

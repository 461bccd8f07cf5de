"""From velocities to one model: the targets of dense students and of flow maps, which need few steps.

A flow map takes x_t to x_r along the trajectory of a velocity. It is told by the average velocity of the way,
u(x_t, t, r) = (x_t - x_r) / (t - r) for r ≤ t, which is the velocity itself where r = t.

Why an expert alone can teach: E[v_k(x_0)(x_t) | x_t] = Σ_k p(k | x_t) v_k(x_t), k(x_0) being the cluster of
the sample behind x_t. So a target that is affine in the teacher's velocity at x_t has the same mean, and its
squared loss the same mean gradient, whether the labelled expert gives it or the whole ensemble. It takes
samples in their natural shares. A target that asks anyone at a point moved by that velocity is not affine.

MeanFlow refers to Geng et al. (arXiv 2505.13447), its distillation to arXiv 2512.13006.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.flow import solver
from atoll.flow.path import expand

Times = Float[Tensor, " batch"]
Samples = Float[Tensor, "batch *sample"]

Average = Callable[[Tensor, Tensor, Tensor], Tensor]
"""u(x_t, t, r) for a batch of points, their times, and the times at which their steps end."""


def distillation_loss(predicted: Samples, target: Samples) -> Times:
    """Mean |v(x_t, t) - target|² per sample, the target being a teacher's (DDM §3.5)."""
    return (predicted - target).square().flatten(1).mean(1)


def land(x_t: Samples, t: Times, r: Times, average: Samples) -> Samples:
    """Where a step of average velocity u ends: x_r = x_t - (t - r) u (MeanFlow eq. 12)."""
    return x_t - expand(t - r, x_t) * average


def along(x_t: Samples, t: Times, x_r: Samples, r: Times) -> Samples:
    """The average velocity between two points of one trajectory, (x_t - x_r) / (t - r) (MeanFlow eq. 3)."""
    return (x_t - x_r) / expand(t - r, x_t)


def slope(average: Average, x_t: Samples, t: Times, r: Times, velocity: Samples, delta: float) -> Samples:
    """du/dt = ∂_x u · v + ∂_t u along the trajectory, by finite differences (arXiv 2512.13006, alg. 2).

    Both points stay on the way, between r and 1, so that nobody is asked about times that there are not.
    """
    after, before = (t + delta).clamp(max=1), torch.maximum(t - delta, r)
    ahead = average(land(x_t, t, after, velocity), after, r)
    behind = average(land(x_t, t, before, velocity), before, r)
    return (ahead - behind) / expand((after - before).clamp(min=delta / 100), x_t)


def meanflow_target(velocity: Samples, slope: Samples, t: Times, r: Times) -> Samples:
    """What u(x_t, t, r) must be: v - (t - r) du/dt (MeanFlow eq. 6); affine in v up to O(δ²) of the slope."""
    return velocity - expand(t - r, velocity) * slope


def weighed(loss: Times, power: float, floor: float) -> Times:
    """The loss over its own size, loss / sg(loss + c)^p, so that no sample outweighs (MeanFlow eq. 22)."""
    return loss / (loss.detach() + floor) ** power


def trajectory(
    velocity: solver.Velocity,
    noise: Samples,
    steps: int,
    step: solver.Step = solver.euler,
    shift: float = 1.0,
) -> Float[Tensor, "points batch *sample"]:
    """All points of a solver's way from noise to data, noise first (arXiv 2509.24526)."""
    points = [noise]
    for t, t_next in itertools.pairwise(solver.times(steps, shift)):
        points.append(step(velocity, points[-1], t, t_next))
    return torch.stack(points)


def step_of_a_walk(t: Times, uniform: Times, counts: Sequence[int]) -> tuple[Times, Times]:
    """Start ⌈n t⌉ / n and end, one n-th less, of the step around t on an even walk of n steps.

    n is drawn from `counts`. A student that is asked for so many steps only ever takes these.
    """
    drawn = (uniform * len(counts)).long().clamp(max=len(counts) - 1)
    n = torch.tensor(counts, device=t.device)[drawn]
    end = ((t * n).ceil() - 1).clamp(min=0)
    return (end + 1) / n, end / n


def two_steps(velocity: Average, x_t: Samples, t: Times, r: Times) -> Samples:
    """The average velocity of two steps of half the length (progressive distillation, arXiv 2202.00512).

    Not affine in the first velocity: the second half starts where the first one ends.
    """
    middle = (t + r) / 2
    first = velocity(x_t, t, middle)
    return (first + velocity(land(x_t, t, middle, first), middle, r)) / 2

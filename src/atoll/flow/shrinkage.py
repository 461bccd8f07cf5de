"""Velocities whose errors are known to grow, shrunk towards one that is known in closed form.

A noise prediction is read off as v = (noise - x_t) / (1 - t): near t = 1 its errors are multiplied without
bound, and there x_t tells little more of x_0 than its two first moments do. So v is shrunk towards the
velocity g of a Gaussian with these moments, by as much as it errs, which is measured on real samples.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.flow.path import expand

Times = Float[Tensor, " batch"]
Samples = Float[Tensor, "batch *sample"]

CERTAIN = 2.0
"""So many standard errors below one a share still passes for one: the prediction is as good as exact."""


def share(target: Samples, predicted: Samples, base: Samples) -> float:
    """The share w of a prediction that makes |target - g - w (v - g)|² least, from 0 to 1.

    w = E<u - g, v - g> / E|v - g|². An exact prediction is E[u | x_t], so that E<u - g, v - g> = E|v - g|²
    and w = 1: nothing changes. Errors e that nothing else depends on give w = D / (D + E|e|²) for the
    distance D = E|E[u | x_t] - g|² (James & Stein 1961, §2): little is left of a prediction that errs much
    where the Gaussian is nearly right, and the loss is never above that of either alone.
    """
    step = (predicted - base).flatten(1).double()
    product, length = (step * (target - base).flatten(1).double()).sum(1), step.square().sum(1)
    total = float(length.sum())
    if total == 0:
        return 1.0
    best = float(product.sum()) / total
    error = float((product - best * length).square().sum().sqrt()) / total
    return 1.0 if best >= 1 - CERTAIN * error else max(0.0, best)


def shrunk(predicted: Samples, base: Samples, shares: Times) -> Samples:
    """Of each sample the share w of its prediction, g + w (v - g) (James & Stein 1961, §2)."""
    return base + expand(shares, base) * (predicted - base)


def between(t: Times, times: Float[Tensor, " some"], shares: Float[Tensor, " some"]) -> Times:
    """The shares at these times: on lines between those that were measured, beyond them as at the ends."""
    above = torch.searchsorted(times, t.contiguous()).clamp(1, len(times) - 1)
    low, high = times[above - 1], times[above]
    weight = ((t - low) / (high - low)).clamp(0, 1)
    return torch.lerp(shares[above - 1], shares[above], weight)

"""What a network predicts and its losses; every prediction as a velocity on the linear path.

A prediction is y = a x_0 + b noise with known a and b. Together with the state x = α x_0 + σ noise this is
two equations for E[x_0 | x] and E[noise | x], so from any prediction on any path the velocity of the linear
path, E[noise - x_0 | x_t], follows exactly.

HDDM refers to Jiang et al., "Heterogeneous Decentralized Diffusion Models" (arXiv 2603.06741).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from atoll.flow import path
from atoll.flow.path import Path, expand

Times = Float[Tensor, " batch"]
Samples = Float[Tensor, "batch *sample"]

PREDICTIONS = ("velocity", "noise", "data", "v")
WEIGHTINGS = ("uniform", "min-snr", "noise", "velocity", "data")

SIGNAL_FLOOR = 0.05
"""Noise predictions are read off down to this 1 - t: their errors grow by 1 / (1 - t)."""
NOISE_FLOOR = 1e-3
"""Data predictions are read off down to this t: their errors grow by 1 / t."""
MIN_SNR = 5.0
"""γ of the min-SNR weighting (Hang et al. 2023, arXiv 2303.09556)."""
WEIGHT_LIMIT = 100.0
"""The largest factor by which a weighting changes a loss; without one some have no finite mean."""


def form(prediction: str, alpha: Times, sigma: Times) -> tuple[Times, Times]:
    """(a, b) of y = a x_0 + b noise: noise - x_0, noise, x_0, or α noise - σ x_0 (Salimans & Ho 2022, §4)."""
    one, zero = torch.ones_like(alpha), torch.zeros_like(alpha)
    if prediction == "v":
        return -sigma, alpha
    return {"velocity": (-one, one), "noise": (zero, one), "data": (one, zero)}[prediction]


def target(prediction: str, alpha: Times, sigma: Times, x_0: Samples, noise: Samples) -> Samples:
    """What a network is to predict: a x_0 + b noise (DDPM eq. 14; DDM eq. 6)."""
    if prediction == "velocity":
        return path.velocity(x_0, noise)
    a, b = form(prediction, alpha, sigma)
    return expand(a, x_0) * x_0 + expand(b, x_0) * noise


def reach(prediction: str, along: Path) -> tuple[float, float]:
    """The times t at which a prediction gives the velocity; beyond them errors explode (HDDM prop. 1)."""
    low, high = along.reach
    if prediction == "noise":
        high = min(high, 1 - SIGNAL_FLOOR)
    if prediction == "data":
        low = max(low, NOISE_FLOOR)
    return low, high


def to_velocity(prediction: str, along: Path, predicted: Samples, x_t: Samples, t: Times) -> Samples:
    """The linear-path velocity E[noise - x_0 | x_t] of a prediction made at the matched state.

    With x = s x_t, α = s (1 - t), σ = s t for the path's scale s, solving for x_0 and noise gives
    v = (y - (a + b) x_t) / ((1 - t) b - t a): for every path the same
    (Diff2Flow, arXiv 2506.02221, has it for noise and v).
    """
    if prediction == "velocity":
        return predicted
    scale = along.scale(t)
    a, b = form(prediction, scale * (1 - t), scale * t)
    return (predicted - expand(a + b, x_t) * x_t) / expand((1 - t) * b - t * a, x_t)


def velocity_loss(predicted: Samples, x_0: Samples, noise: Samples) -> Times:
    """Conditional flow matching, per sample: mean |v(x_t, t) - (noise - x_0)|² (DDM eq. 6)."""
    return _mean_square(predicted - path.velocity(x_0, noise))


def loss(
    prediction: str,
    weighting: str,
    alpha: Times,
    sigma: Times,
    predicted: Samples,
    x_0: Samples,
    noise: Samples,
) -> Times:
    """The natural loss of a prediction, mean |y - (a x_0 + b noise)|² per sample (DDPM eq. 14), weighted."""
    if prediction == "velocity":
        error = velocity_loss(predicted, x_0, noise)
    else:
        error = _mean_square(predicted - target(prediction, alpha, sigma, x_0, noise))
    return error if weighting == "uniform" else weight(weighting, prediction, alpha, sigma) * error


def implicit_weight(prediction: str, alpha: Times, sigma: Times) -> Times:
    """The weight of |error of x_0|² in the natural loss of a prediction (HDDM prop. 1).

    At a fixed state α δx_0 + σ δnoise = 0, so δy = (a - b α / σ) δx_0. Noise α² / σ², data 1, v 1 / σ² on a
    variance-preserving path, velocity (α + σ)² / σ², which is 1 / σ² on the linear path.
    """
    a, b = form(prediction, alpha, sigma)
    return (a - b * alpha / sigma).square()


def weight(weighting: str, prediction: str, alpha: Times, sigma: Times) -> Times:
    """The factor that gives the natural loss of a prediction the x_0 weight of another.

    `noise`, `velocity`, `data`: that of their natural loss; `min-snr`: min(α² / σ², γ) (Hang et al. 2023,
    arXiv 2303.09556); `uniform`: its own.
    """
    if weighting == "uniform":
        return torch.ones_like(alpha)
    tiny = torch.finfo(alpha.dtype).tiny
    sigma = sigma.clamp(min=1e-6)
    if weighting == "min-snr":
        wanted = (alpha / sigma).square().clamp(max=MIN_SNR)
    else:
        wanted = implicit_weight(weighting, alpha, sigma)
    own = implicit_weight(prediction, alpha, sigma).clamp(min=tiny)
    return (wanted / own).clamp(max=WEIGHT_LIMIT)


def published_velocity(
    along: Path, predicted: Samples, x_t: Samples, t: Times, derivatives: bool = False
) -> Samples:
    """A noise prediction as a velocity as HDDM publishes it, for comparison; wrong between two paths.

    The network is asked about x_t itself at its own time t, neither matched nor rescaled. Then
    x_0 = (x_t - σ noise) / max(α, 0.01), clamped to ±20, and noise - x_0, or with the schedule's own
    derivatives α' x_0 + σ' noise. Its damping above t = 0.85 is not known in detail and left out
    (arXiv 2603.06741).
    """
    time = t * along.last
    alpha, sigma = along.coefficients(time)
    x_0 = (x_t - expand(sigma, x_t) * predicted) / expand(alpha.clamp(min=0.01), x_t)
    x_0 = x_0.clamp(-20, 20)
    if not derivatives:
        return path.velocity(x_0, predicted)
    step = 1e-3
    ahead = along.coefficients((time + step).clamp(max=along.last))
    behind = along.coefficients((time - step).clamp(min=0))
    span = (time + step).clamp(max=along.last) - (time - step).clamp(min=0)
    d_alpha, d_sigma = ((after - before) / span for after, before in zip(ahead, behind, strict=True))
    return expand(d_alpha, x_t) * x_0 + expand(d_sigma, x_t) * predicted


def router_loss(
    logits: Float[Tensor, "batch experts"], cluster: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Cross-entropy of the cluster given x_t, per sample; least at the posterior p(k | x_t) (DDM alg. 1).

    The minimum is the posterior only if samples are drawn with the natural frequencies of the clusters; if
    not, of logits with `oversampling` added.
    """
    return F.cross_entropy(logits, cluster, reduction="none")


def oversampling(
    read: Float[Tensor, " experts"], shares: Float[Tensor, " experts"]
) -> Float[Tensor, " experts"]:
    """Log of how much more of each cluster is read than its share of all samples, up to a constant.

    With it added while a router learns, its logits are those of the true shares: p(k | x) is proportional to
    π_k / r_k times what it would be of samples that are read with frequencies r (Menon et al. 2021, eq. 10).
    """
    return (read / read.sum()).log() - (shares / shares.sum()).log()


def guide(conditional: Samples, unconditional: Samples, scale: float | Times) -> Samples:
    """Classifier-free guidance: v_0 + s (v_c - v_0); s = 1 is the conditional one (Ho & Salimans, eq. 6)."""
    if isinstance(scale, Tensor):
        scale = expand(scale, conditional)
    return unconditional + scale * (conditional - unconditional)


def _mean_square(error: Samples) -> Times:
    return error.square().flatten(1).mean(1)

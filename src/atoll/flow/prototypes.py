"""Routing in closed form: prototypes of each part's data in the space of x_t, and one temperature by time.

A part's data is a mixture of round Gaussians, Σ_j π_j N(μ_j, σ_j² I). On the linear path such a mixture stays
one, N((1-t) μ_j, ((1-t)² σ_j² + t²) I), so that p(k | x_t) needs no training: rows come and go with parts.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

SMALLEST = 1e-8
"""Of a variance, so that nothing is divided by zero at t = 0."""
COLDEST, HOTTEST = 1e-4, 10.0
"""Between these inverse temperatures is looked for."""
HALVINGS = 60


def log_density(
    x_t: Float[Tensor, "batch dims"],
    t: Float[Tensor, " batch"],
    means: Float[Tensor, "prototypes dims"],
    variances: Float[Tensor, " prototypes"],
) -> Float[Tensor, "batch prototypes"]:
    """Log N(x_t; (1-t) μ_j, ((1-t)² σ_j² + t²) I) up to a constant (CDM, arXiv 2308.01937, §3; DDM eq. 4)."""
    alpha = (1 - t)[:, None]
    width = (alpha.square() * variances + t[:, None].square()).clamp(min=SMALLEST)
    square = x_t.square().sum(1, keepdim=True) + alpha.square() * means.square().sum(1)
    distance = (square - 2 * alpha * (x_t @ means.T)).clamp(min=0)
    return -0.5 * (distance / width + x_t.shape[1] * width.log())


def by_owner(
    joint: Float[Tensor, "batch prototypes"], owner: Int[Tensor, " prototypes"], owners: int
) -> Float[Tensor, "batch owners"]:
    """Log Σ_j over each owner's prototypes: log λ_k p_t(x_t | k) (DDM eq. 4); -∞ for who has none.

    Exponentials are taken from each owner's largest, so that none of them overflows.
    """
    index = owner.expand(len(joint), -1)
    most = joint.new_full((len(joint), owners), -torch.inf).scatter_reduce(1, index, joint, "amax")
    most = most.where(most.isfinite(), 0)
    sums = joint.new_zeros(len(joint), owners).index_add(1, owner, (joint - most[:, owner]).exp())
    return sums.log() + most


def inverse_temperature(
    logits: Float[Tensor, "batch owners"],
    owner: Int[Tensor, " batch"],
    weights: Float[Tensor, " batch"],
) -> float:
    """β of softmax(β logits) with the least cross-entropy (temperature scaling; Guo et al. 2017, eq. 9).

    The cross-entropy is convex in β; where its slope Σ w (E_p[logit] - logit of the owner) is zero, it is
    least. Round Gaussians are far too sure of real data at small t, so that β is well below 1 there.
    """
    finite = logits.double().clamp(min=-1e12)
    finite = finite - finite.max(1, keepdim=True).values
    own = finite.gather(1, owner[:, None])[:, 0]
    share = (weights / weights.sum()).double()

    def _slope(beta: float) -> float:
        mean = ((beta * finite).softmax(1) * finite).sum(1)
        return float((share * (mean - own)).sum())

    low, high = math.log(COLDEST), math.log(HOTTEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _slope(math.exp(middle)) > 0 else (middle, high)
    return math.exp((low + high) / 2)


def grown(
    known: Float[Tensor, "batch known"], groups: Float[Tensor, "batch groups"]
) -> Float[Tensor, "batch all"]:
    """Log p(k | x_t) of known parts and new ones: p(k) = p(known) p(k | known) (Bayes; DDM eq. 4).

    The first column of `groups` is all known parts together, every other one a new part. Among the known
    ones nothing changes, whatever comes.
    """
    between = groups.log_softmax(1)
    return torch.cat([between[:, :1] + known.log_softmax(1), between[:, 1:]], dim=1)


def moments(
    x: Float[Tensor, "rows dims"], nearest: Int[Tensor, " rows"], count: int
) -> tuple[Float[Tensor, "count dims"], Float[Tensor, " count"], Int[Tensor, " count"]]:
    """Mean, variance per dimension and size of each group of rows (Bishop 2006, §9.2.2)."""
    sizes = torch.bincount(nearest, minlength=count)
    sums = torch.zeros(count, x.shape[1], dtype=torch.float64).index_add_(0, nearest, x.double())
    squares = torch.zeros(count, dtype=torch.float64).index_add_(0, nearest, x.double().square().sum(1))
    means = sums / sizes.clamp(min=1)[:, None]
    variances = (squares / sizes.clamp(min=1) - means.square().sum(1)).clamp(min=0) / x.shape[1]
    return means.float(), variances.float(), sizes


def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """Noise per unit of sensitivity that makes so many Gaussian releases (ε, δ)-private together.

    A release with noise σ per sensitivity costs 1 / (2 σ²) of zCDP, releases add up, and ρ of it are
    (ρ + 2 √(ρ log 1/δ), δ) (Bun & Steinke 2016, prop. 1.3, 1.6, lemma 1.7), solved here for ρ.
    """
    room = math.log(1 / delta)
    rho = (math.sqrt(room + epsilon) - math.sqrt(room)) ** 2
    return math.sqrt(releases / (2 * rho))


def private_moments(
    x: Float[Tensor, "rows dims"],
    group: Int[Tensor, " rows"],
    count: int,
    budget: tuple[float, float],
    generator: torch.Generator,
) -> tuple[Float[Tensor, "count dims"], Float[Tensor, " count"], Float[Tensor, " count"]]:
    """`moments` with (ε, δ) differential privacy, one sample more or less (Bun & Steinke 2016, prop. 1.6).

    Groups must not depend on other samples, as classes do not. Samples are cut to the length √dims, which
    pixels in [-1, 1] never exceed; then one sample changes a sum by √dims at most, a sum of squares per
    dimension by 1, a size by 1.
    """
    reach = math.sqrt(x.shape[1])
    length = x.norm(dim=1, keepdim=True).clamp(min=1e-12)
    means, variances, sizes = moments(x * (reach / length).clamp(max=1), group, count)
    sigma = noise_for(*budget, releases=3)

    def _noise(*shape: int) -> Tensor:
        return sigma * torch.randn(*shape, generator=generator, dtype=torch.float64)

    counts = sizes.double()
    noisy = (counts + _noise(count)).clamp(min=1)
    sums = means.double() * counts[:, None] + reach * _noise(count, x.shape[1])
    squares = (variances.double() + means.double().square().mean(1)) * counts + _noise(count)
    centres = (sums / noisy[:, None]).clamp(-1e3, 1e3)
    spread = (squares / noisy - centres.square().mean(1)).clamp(min=1e-3)
    return centres.float(), spread.float(), noisy.float()

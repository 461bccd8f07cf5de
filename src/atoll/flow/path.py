"""Paths between data and noise, and the time convention: t = 0 is data, t = 1 is noise.

Equation numbers of DDM refer to McAllister et al., "Decentralized Diffusion Models" (arXiv 2501.05450).
"""

from jaxtyping import Float
from torch import Tensor


def expand(t: Float[Tensor, " batch"], like: Float[Tensor, "batch *sample"]) -> Float[Tensor, "batch *ones"]:
    """Give one number per sample as many axes as the samples have, so that it multiplies them."""
    return t.view(-1, *[1] * (like.ndim - 1))


def point(
    x_0: Float[Tensor, "batch *sample"], noise: Float[Tensor, "batch *sample"], t: Float[Tensor, " batch"]
) -> Float[Tensor, "batch *sample"]:
    """The point x_t = (1 - t) x_0 + t noise of the linear path (DDM §3.1; Liu et al. 2022, eq. 1)."""
    return x_0.lerp(noise, expand(t, x_0))


def velocity(
    x_0: Float[Tensor, "batch *sample"], noise: Float[Tensor, "batch *sample"]
) -> Float[Tensor, "batch *sample"]:
    """The conditional velocity u_t(x_t | x_0) = dx_t/dt = noise - x_0 of the linear path (DDM eq. 2)."""
    return noise - x_0

"""What a network predicts and its losses."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from atoll.flow import path


def velocity_loss(
    predicted: Float[Tensor, "batch *sample"],
    x_0: Float[Tensor, "batch *sample"],
    noise: Float[Tensor, "batch *sample"],
) -> Float[Tensor, " batch"]:
    """Conditional flow matching, per sample: mean |v(x_t, t) - (noise - x_0)|² (DDM eq. 6)."""
    return (predicted - path.velocity(x_0, noise)).square().flatten(1).mean(1)


def router_loss(
    logits: Float[Tensor, "batch experts"], cluster: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Cross-entropy of the cluster given x_t, per sample; least at the posterior p(k | x_t) (DDM alg. 1).

    The minimum is the posterior only if samples are drawn with the natural frequencies of the clusters.
    """
    return F.cross_entropy(logits, cluster, reduction="none")


def guide(
    conditional: Float[Tensor, "batch *sample"], unconditional: Float[Tensor, "batch *sample"], scale: float
) -> Float[Tensor, "batch *sample"]:
    """Classifier-free guidance: v_0 + s (v_c - v_0); s = 1 is the conditional one (Ho & Salimans, eq. 6)."""
    return unconditional + scale * (conditional - unconditional)

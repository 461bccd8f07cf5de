"""What keeps values honest: bounds on what a part may say, copies, and numbers that do not fit together."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CLIP = 2.0
"""How much farther from the base than usual an expert may go; 1 would cost honest ones."""
SAME = 0.98
"""Cosine of what two parts say beyond the base above which they are one part."""
ALARM = 1.3
"""Ratio of value to leave-one-out above which somebody should look: honest parts have about 0.9."""


def clip(
    apart: Float[Tensor, "experts batch *sample"],
    cluster: Int[Tensor, " batch"],
    factor: float = CLIP,
) -> Float[Tensor, "experts batch *sample"]:
    """Each d_i with ‖d_i‖ at most `factor` times its median over the samples of the expert's own cluster.

    Bounds overshooting along what others correct already. An expert whose cluster has no sample here is
    measured by the median of all experts over theirs.
    """
    norms = apart.flatten(2).norm(dim=2)  # (experts, batch)
    own = [norms[k][cluster == k] for k in range(len(apart))]
    known = [part.median() for part in own if len(part)]
    usual = torch.stack(known).median() if known else norms.median()
    limits = torch.stack([part.median() if len(part) else usual for part in own]) * factor
    scale = (limits[:, None] / norms.clamp(min=1e-38)).clamp(max=1.0)
    return apart * scale.reshape(*scale.shape, *[1] * (apart.ndim - 2))


def likeness(apart: Float[Tensor, "experts batch *sample"]) -> Float[Tensor, "experts experts"]:
    """Cosine of v_i - v_b and v_j - v_b over all samples together, of public noise for instance."""
    rows = torch.nn.functional.normalize(apart.flatten(1).double(), dim=1)
    return rows @ rows.T


def copies(apart: Float[Tensor, "experts batch *sample"], same: float = SAME) -> list[tuple[int, int]]:
    """Pairs of parts that say the same: the later one is refused, or shares the earlier one's weight."""
    alike = likeness(apart) > same
    return [(i, j) for j in range(len(alike)) for i in range(j) if bool(alike[i, j])]


def alarms(
    values: Float[Tensor, " experts"], without: Float[Tensor, " experts"], ratio: float = ALARM
) -> Bool[Tensor, " experts"]:
    """Whether a part is paid for more than it would be missed for: clones and overshooting."""
    return (values > 0) & (values > ratio * without.clamp(min=0))

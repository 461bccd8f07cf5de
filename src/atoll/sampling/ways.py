"""How much of a sample's way each expert went: x_t with what every expert has moved of it, as one state.

A solver is linear in where a sample is and in its velocity, so that it moves what every expert adds, from
zero on, as it moves the sample: the displacements of all experts sum to the sample's own.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.credit.shares import trajectory_shares
from atoll.flow.mixture import Combined

State = Float[Tensor, "batch one_and_experts *sample"]
"""First the sample, then what each expert has moved."""


def begun(noise: Float[Tensor, "batch *sample"], experts: int) -> State:
    """Noise that nobody has moved yet."""
    nothing = noise.new_zeros(len(noise), experts, *noise.shape[1:])
    return torch.cat([noise[:, None], nothing], dim=1)


def point(state: State) -> Float[Tensor, "batch *sample"]:
    """Where the samples are."""
    return state[:, 0].contiguous()


def velocity(mixed: Combined) -> State:
    """That of the samples, and what each expert adds to it."""
    assert mixed.parts is not None, "asked for apart"
    return torch.cat([mixed.velocity[:, None], mixed.parts], dim=1)


def moved(state: State) -> Float[Tensor, "batch experts *sample"]:
    """What each expert has moved."""
    return state[:, 1:]


def shares(moved: Float[Tensor, "batch experts *sample"]) -> Float[Tensor, "batch experts"]:
    """How much of the way each expert went; signed, and every row sums to one once anybody has moved."""
    by_expert = moved.transpose(0, 1)
    return trajectory_shares(by_expert, by_expert.sum(0))

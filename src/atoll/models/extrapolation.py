"""A network taken on in the direction in which training took it from another.

Experts that go on from a common start have learnt in a few steps where their cluster differs from all data.
Going on along that line makes more of it, as guidance away from the start does, in one pass instead of two.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from atoll.errors import ConfigError


def extrapolate(network: nn.Module, began: Mapping[str, Tensor], reach: float, name: str) -> nn.Module:
    """The network with weights θ_0 + s (θ - θ_0) (task arithmetic, arXiv 2212.04089, §2).

    θ_0 is what it began with; s = 0 is that network, s = 1 this one.
    """
    own = network.state_dict()
    shapes = {key: value.shape for key, value in own.items()}
    if shapes != {key: value.shape for key, value in began.items()}:
        raise ConfigError(
            f"{name} is of another build than what it began with, so that nothing leads from one to the "
            "other; set sample.extrapolate = 1"
        )
    moved = {
        key: torch.lerp(began[key].to(value), value, reach) if value.is_floating_point() else value
        for key, value in own.items()
    }
    network.load_state_dict(moved, assign=True)
    return network.eval().requires_grad_(False)

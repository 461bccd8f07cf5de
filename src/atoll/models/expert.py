"""A network and its objective as one velocity on the linear path: what an ensemble takes for an expert."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.flow import objectives, path
from atoll.models.checkpoint import Objective
from atoll.models.conditions import Condition


class Expert(nn.Module):
    """Any network, asked in its own terms, answers with the velocity of the linear path."""

    def __init__(self, network: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.network, self.objective = network, objective

    def forward(
        self, x_t: Float[Tensor, "batch *sample"], t: Float[Tensor, " batch"], condition: Condition = None
    ) -> Float[Tensor, "batch *sample"]:
        """The velocity at x_t."""
        return velocity(self.network, self.objective, x_t, t, condition)


def velocity(
    network: nn.Module,
    objective: Objective,
    x_t: Float[Tensor, "batch *sample"],
    t: Float[Tensor, " batch"],
    condition: Condition = None,
) -> Float[Tensor, "batch *sample"]:
    """Match the noise level, rescale the state, ask, and recombine.

    Beyond the noise levels that the network knows, or at which its prediction still tells the velocity, it
    is that of the nearest one. All but the network itself is computed in float32 or better.
    """
    along = path.PATHS[objective.path]
    exact = torch.promote_types(t.dtype, torch.float32)
    t = t.to(exact).clamp(*objectives.reach(objective.prediction, along))
    time = _whole_index(t) if objective.rounded else along.match(t)
    if objective.path == "linear" and objective.prediction == "velocity":
        return network(x_t, time, condition)
    state = x_t.to(exact)
    predicted = network((path.expand(along.scale(t), state) * state).to(x_t.dtype), time, condition)
    v = objectives.to_velocity(objective.prediction, along, predicted.to(exact), state, t)
    return v.to(x_t.dtype)


def _whole_index(t: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """The index round(999 t) that HDDM (arXiv 2603.06741) feeds a converted network, as a time."""
    return (t * (path.INDICES - 1)).round() / path.INDICES


def as_expert(network: nn.Module, objective: Objective) -> nn.Module:
    """The network itself where it predicts the velocity already, else the network in its wrapper."""
    return network if objective == Objective() else Expert(network, objective)

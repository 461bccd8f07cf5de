"""Two networks one after the other: an expert while there is much noise, one that all share below."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.models import conditions
from atoll.models.conditions import Condition


class Relay(nn.Module):
    """An expert down to a time, from there on the network for the low noise of all clusters.

    Who follows an expert of a cluster drawn by its share down to that time is distributed as all data at that
    noise, and the velocity of all data brings it to data: no cluster need be known there (DDM eq. 5, whose
    sum is that velocity).
    """

    def __init__(self, expert: nn.Module, shared: nn.Module, below: float) -> None:
        super().__init__()
        self.expert, self.shared, self.below = expert, shared, below

    def forward(
        self, x_t: Float[Tensor, "batch *sample"], t: Float[Tensor, " batch"], condition: Condition = None
    ) -> Float[Tensor, "batch *sample"]:
        """The velocity at x_t; rows of one batch may be at both sides."""
        low = t < self.below
        if bool(low.all()):
            return self.shared(x_t, t, condition)
        if not bool(low.any()):
            return self.expert(x_t, t, condition)
        sides = [(self.shared, low.nonzero()[:, 0]), (self.expert, (~low).nonzero()[:, 0])]
        answers = [network(x_t[rows], t[rows], conditions.take(condition, rows)) for network, rows in sides]
        order = torch.cat([rows for _, rows in sides])
        return torch.empty_like(x_t, dtype=answers[0].dtype).index_copy(0, order, torch.cat(answers))

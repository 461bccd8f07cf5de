"""The router: p(cluster | x_t, t, condition), from the blocks of an expert, and from prototypes besides."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.config import NetworkConfig
from atoll.models import conditions
from atoll.models.dit import Trunk
from atoll.models.prototypes import Prototypes


class Router(nn.Module):
    """A transformer with one extra token that is read off as a logit for each cluster (DDM §3.3).

    With prototypes, what is learnt is added to what they say in closed form: a new router says just that.
    """

    def __init__(
        self,
        network: NetworkConfig,
        shape: Sequence[int],
        clusters: int,
        kind: conditions.Kind = "none",
        classes: int = 0,
        text: int = 0,
        prototypes: int = 0,
    ) -> None:
        """Build a router; `text` is the width of the states of a text, `prototypes` how many there are."""
        super().__init__()
        self.trunk = Trunk(network, shape, kind, classes, text)
        self.token = nn.Parameter(torch.empty(1, 1, network.width))
        self.head = nn.Linear(network.width, clusters)
        self.prototypes = (
            Prototypes.blank(prototypes, math.prod(shape), clusters, classes if kind == "class" else 0)
            if prototypes
            else None
        )
        self.trunk.initialise()
        if not self.token.is_meta:
            nn.init.normal_(self.token, std=0.02)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        x_t: Float[Tensor, "batch channels *grid"],
        t: Float[Tensor, " batch"],
        condition: conditions.Condition = None,
    ) -> Float[Tensor, "batch clusters"]:
        """Logits of the clusters."""
        tokens = self.trunk.tokens(x_t)
        tokens = torch.cat([self.token.expand(len(x_t), -1, -1).to(tokens.dtype), tokens], dim=1)
        logits = self.head(self.trunk(tokens, t, condition)[:, 0])
        if self.prototypes is None:
            return logits
        return logits.float() + self.prototypes(x_t, t, condition).log_softmax(1).float()

"""What a network sees in samples: features of any kind of sample, from the middle of an expert's network."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.flow import draws, path
from atoll.models import checkpoint, conditions

TIME = 0.4
"""The noise level: shapes are still there, and the network has to know them to see through it."""


class Seen:
    """The first half of a network, asked about samples with the same noise on each.

    With the same noise, two samples differ in what they are and in nothing else.
    """

    def __init__(self, model: nn.Module, blueprint: checkpoint.Blueprint, seed: int) -> None:
        """The network is cut in half: it is of no other use from then on."""
        self.model, self.blueprint = model, blueprint
        trunk = model.trunk
        assert isinstance(trunk, nn.Module)
        blocks = trunk.blocks
        assert isinstance(blocks, nn.ModuleList)
        self.block = max(1, len(blocks) // 2)
        trunk.blocks = blocks[: self.block]
        trunk.blocks[-1].register_forward_hook(self._keep)
        self._noise = torch.randn(*blueprint.shape, generator=draws.generator(seed, "features"))
        self._tokens: Tensor | None = None

    @classmethod
    def load(cls, folder: Path, seed: int, device: torch.device) -> "Seen":
        """The network of a finished stage."""
        weights, config = folder / checkpoint.WEIGHTS, folder / checkpoint.CONFIG
        return cls(*checkpoint.load(weights, config, device), seed)

    def _keep(self, block: nn.Module, given: object, tokens: Tensor) -> None:
        self._tokens = tokens

    @torch.inference_mode()
    def __call__(self, x_0: Float[Tensor, "batch channels *grid"]) -> Float[Tensor, "batch features"]:
        """Mean and standard deviation over tokens, which are twice the network's width."""
        about = self.blueprint
        along = path.PATHS[about.objective.path]
        t = torch.full((len(x_0),), TIME * along.last, device=x_0.device)
        x_t = along.point(x_0, self._noise.to(x_0.device).expand_as(x_0), t)
        condition = conditions.nothing(about.condition, len(x_0), about.classes, about.text, x_0.device)
        self.model(x_t, t, condition)
        assert self._tokens is not None
        tokens = self._tokens.float()
        return torch.cat([tokens.mean(dim=1), tokens.std(dim=1, correction=0)], dim=1)

"""Ensembles whose answers are known in closed form."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from atoll.sampling.ensemble import Ensemble
from atoll.sampling.sampler import Sampler
from tests.analytic import ExactExpert, ExactRouter, FiniteData


def exact(data: FiniteData) -> Sampler:
    """The exact model of some data: perfect experts and a perfect router."""
    experts = [ExactExpert(data, k) for k in range(data.clusters)]
    return Sampler(Ensemble(experts, data.priors.float(), (data.points.shape[1],), ExactRouter(data)))


class ClassRouter(nn.Module):
    """Class c belongs to cluster c; without a class every cluster is as likely."""

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return torch.eye(3)[:, :2][condition].log()


class Speaker(nn.Module):
    """An expert whose velocity leads any noise to its own constant, or to the class it is told."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        target = self.value + torch.where(condition == 2, 0.0, 0.1 * (condition + 1)).view(-1, 1)
        return (x_t - target) / t.view(-1, 1)


def told(**different: Any) -> Sampler:
    """Two experts of two classes, one each."""
    ensemble = Ensemble(
        [Speaker(0.0), Speaker(10.0)], torch.tensor([0.9, 0.1]), (1,), ClassRouter(), classes=2
    )
    return Sampler(replace(ensemble, **different))

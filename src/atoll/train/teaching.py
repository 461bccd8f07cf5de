"""Who teaches a student at a noisy sample: its own cluster's expert, all of them, or one that is drawn."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from atoll.config import Teacher
from atoll.flow import mixture
from atoll.models import conditions
from atoll.models.conditions import Condition
from atoll.sampling.ensemble import Ensemble


@dataclass(frozen=True)
class Lesson:
    """What a teacher is asked about: noisy samples, and what is known of each."""

    x_t: Float[Tensor, "batch *sample"]
    t: Float[Tensor, " batch"]
    condition: Condition
    cluster: Int[Tensor, " batch"]
    """The cluster of the sample behind x_t."""
    uniform: Float[Tensor, " batch"]
    """A number in [0, 1) by which to draw."""


@dataclass(frozen=True)
class Teachers:
    """An ensemble that teaches, with guidance if wanted."""

    ensemble: Ensemble
    who: Teacher = "label"
    guidance: float = 1.0
    guided: tuple[float, float] = (0.0, 1.0)
    """The interval of t in which guidance acts."""

    @torch.no_grad()
    def velocity(self, lesson: Lesson) -> Float[Tensor, "batch *sample"]:
        """The velocity to learn; each expert is asked only about the samples that are its own."""
        weights = self._weights(lesson)
        x_t, t, told = lesson.x_t, lesson.t, lesson.condition
        if self.guidance == 1 or told is None:
            return self.ensemble.weighted(weights, x_t, t, told)[0]
        inside = (t >= self.guided[0]) & (t <= self.guided[1])
        found = torch.empty_like(x_t)
        for rows, guidance in ((inside, self.guidance), (~inside, 1.0)):
            if bool(rows.any()):
                own = conditions.take(told, rows)
                found[rows] = self.ensemble.weighted(weights[rows], x_t[rows], t[rows], own, guidance)[0]
        return found

    def _weights(self, lesson: Lesson) -> Float[Tensor, "batch experts"]:
        experts = len(self.ensemble.experts)
        if self.who == "label":
            return mixture.one_hot(lesson.cluster, experts)
        posterior = self.ensemble.posterior(lesson.x_t, lesson.t, lesson.condition)
        if self.who == "ensemble":
            return posterior
        return mixture.one_hot(mixture.draw(posterior, lesson.uniform), experts)

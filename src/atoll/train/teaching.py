"""Who teaches a student at a noisy sample: its own cluster's expert, all of them, or one that is drawn."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from atoll.config import Teacher
from atoll.flow import mixture, objectives
from atoll.models import conditions
from atoll.models.conditions import Condition
from atoll.sampling.ensemble import Ensemble
from atoll.train.moving import move


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
    host_t: Float[Tensor, " batch"] | None = None
    host_cluster: Int[Tensor, " batch"] | None = None
    """Times and clusters once more, on the CPU, where reading them makes nobody wait."""


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
        x_t, t, condition = lesson.x_t, lesson.t, lesson.condition
        weights = self._posterior(lesson) if self.who != "label" else None
        total = torch.zeros_like(x_t)
        for k, guidance, here in self._questions(lesson, weights):
            rows = move(here, x_t.device)
            v = self._asked(k, x_t[rows], t[rows], conditions.take(condition, rows), guidance)
            if self.who == "ensemble":
                assert weights is not None
                v = weights[rows, k].to(v.dtype).view(-1, *[1] * (v.ndim - 1)) * v
            total.index_add_(0, rows, v)
        return total

    def _posterior(self, lesson: Lesson) -> Float[Tensor, "batch experts"]:
        return self.ensemble.posterior(lesson.x_t, lesson.t, lesson.condition)

    def _questions(self, lesson: Lesson, weights: Tensor | None) -> Iterator[tuple[int, float, Tensor]]:
        """Whom to ask with how much guidance about which rows, which are on the CPU."""
        own = self._teacher_of_each(lesson, weights)
        guided = self._is_guided(lesson)
        for k in range(len(self.ensemble.experts)) if own is None else sorted(set(own.tolist())):
            for acts, guidance in ((False, 1.0), (True, self.guidance)):
                rows = (guided == acts if own is None else (guided == acts) & (own == k)).nonzero()[:, 0]
                if len(rows):
                    yield k, guidance, rows

    def _teacher_of_each(self, lesson: Lesson, weights: Tensor | None) -> Int[Tensor, " batch"] | None:
        """Which expert teaches each sample, on the CPU; None where all do. A drawn one is waited for."""
        if weights is None:
            return lesson.cluster.cpu() if lesson.host_cluster is None else lesson.host_cluster
        return mixture.draw(weights, lesson.uniform).cpu() if self.who == "sampled" else None

    def _is_guided(self, lesson: Lesson) -> Bool[Tensor, " batch"]:
        """Which samples are guided, on the CPU."""
        if self.guidance == 1 or lesson.condition is None:
            return torch.zeros(len(lesson.x_t), dtype=torch.bool)
        t = lesson.t.cpu() if lesson.host_t is None else lesson.host_t
        return (t >= self.guided[0]) & (t <= self.guided[1])

    def _asked(self, k: int, x_t: Tensor, t: Tensor, condition: Condition, guidance: float) -> Tensor:
        """One expert's velocity; the conditional and unconditional halves of guidance in one batch."""
        expert = self.ensemble.experts[k]
        if guidance == 1 or condition is None:
            return expert(x_t, t, condition).to(x_t.dtype)
        both = conditions.concatenate([condition, conditions.null(condition, self.ensemble.classes)])
        v = expert(torch.cat([x_t, x_t]), torch.cat([t, t]), both).to(x_t.dtype)
        return objectives.guide(v[: len(x_t)], v[len(x_t) :], guidance)

"""The one model distilled from all experts: [student]."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from atoll.config.digest import ELSEWHERE, OPERATIONAL, Formerly
from atoll.config.network import NetworkConfig
from atoll.config.section import Section
from atoll.config.training import TrainConfig

Teacher = Literal["label", "ensemble", "sampled"]
"""Who teaches at a noisy sample: the expert of its own cluster; all experts as the router weighs them; or one
that is drawn from the router's posterior."""


class FewStepConfig(TrainConfig):
    """A student that needs few steps: a flow map, which is told where a step ends."""

    method: Literal["meanflow", "progressive"] = "meanflow"
    """Trajectories and MeanFlow, for 1 to 8 steps; or halving their number again and again, for 4 to 8."""
    teacher: Literal["student", "label", "ensemble", "sampled"] = "student"
    """The dense student; or, as [student] has them, experts directly, which saves one distillation."""
    init: Annotated[Literal["student", "expert", "average", "start"], ELSEWHERE] = "student"
    """What it starts from."""
    steps: Annotated[int, Formerly(20_000)] = Field(0, ge=0)
    """Optimiser steps of MeanFlow after the trajectories: by default none, since they made all students that
    were measured worse. Of `progressive`, for each halving; by default 20,000."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Differences of neighbouring times need float32."""
    trajectories: int = Field(5000, ge=0)
    """Steps of training beforehand on the teacher's own trajectories, without which MeanFlow may explode."""
    grid: int = Field(16, ge=2)
    """Solver steps of such a trajectory; of `progressive`, those that the teacher starts with."""
    fewest: int = Field(4, ge=1)
    """Of `progressive`: the number of steps at which halving ends."""
    pairs: float = Field(0.25, gt=0, le=1)
    """The share of samples from which a step is taken; the others keep the velocity right."""
    delta: float = Field(0.02, gt=0, lt=0.5)
    """How far in time the points of a finite difference are from its middle. Networks see waves of t that are
    0.006 long: a shorter distance sees little else, a much longer one blurs what is to be learnt."""
    power: float | None = Field(None, ge=0, le=1)
    """How much large losses are held back: 0 not at all, 1 to one size. By default 1, for single experts 0:
    what they teach scatters about the ensemble, and would be pulled to one side."""
    floor: float = Field(1e-3, gt=0)
    """Losses below this count less and less."""
    sample_steps: int = Field(4, ge=1)
    """Steps from noise to data unless the command says otherwise."""
    sample_shift: float = Field(2.0, gt=0)
    """`sample.shift` of these steps and of the trajectories that are learnt: above 1 steps are shorter near
    the noise, where it is decided what becomes of it. `progressive` takes even steps."""

    @model_validator(mode="before")
    @classmethod
    def _halvings_take_steps(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("method") == "progressive":
            return {"steps": 20_000, **given}
        return given

    @model_validator(mode="after")
    def _methods_with_their_teachers(self) -> Self:
        if self.precision != "float32":
            raise ValueError("student.few.precision must be 'float32': differences of times need it")
        if self.steps == 0 and (self.method == "progressive" or self.trajectories == 0):
            raise ValueError("'student.few.steps' = 0 leaves it at trajectories: give some, with 'meanflow'")
        if self.method == "progressive":
            if self.teacher in ("label", "sampled"):
                raise ValueError(
                    "'progressive' asks its teacher at points that it moved, where one expert does not stand "
                    "for all: set student.few.teacher to 'student' or 'ensemble'"
                )
            levels = self.grid // self.fewest
            if self.fewest * levels != self.grid or levels & (levels - 1) or levels < 2:
                raise ValueError(
                    f"'progressive' halves {self.grid} steps (student.few.grid) down to {self.fewest} "
                    "(student.few.fewest): make their ratio 2, 4, 8, …"
                )
        return self


class SitesConfig(Section):
    """Distillation by sites that exchange weights only now and then, each with its own experts and data."""

    clusters: Annotated[tuple[Annotated[tuple[int, ...], Field(strict=False)], ...] | None, ELSEWHERE] = (
        Field(None, strict=False)
    )
    """The clusters of each site, as [[0, 1], [2, 3]]; by default every cluster is a site."""
    inner: int = Field(30, ge=1)
    """Steps that a site takes alone before its weights are merged."""
    optimiser: Literal["own", "merged"] = "merged"
    """Whether a site keeps the moments of its own gradients or begins each round with the mean of all.
    Own ones are a third of the traffic, but then each site scales its steps by its own data, and what they
    agree on is not where the mean of their gradients vanishes, however small the steps."""
    outer_lr: float = Field(0.7, gt=0)
    """How far the merged model moves along the mean of the sites' movements."""
    momentum: float = Field(0.3, ge=0, lt=1)
    """Nesterov's, of these moves. Movements of short rounds point the same way and add up: the model moves
    outer_lr / (1 - momentum) times as far, which should be about 1. Hundreds of inner steps bear 0.9."""


class StudentConfig(NetworkConfig, TrainConfig):
    """One model from many: its network, by default the experts' own, its training, and who teaches it."""

    steps: int = Field(100_000, ge=0)
    """Optimiser steps; 0 trains no dense student, only a few-step one."""
    teacher: Teacher = "label"
    """`label`: the expert of each sample's own cluster, which needs no router and is as good on the average;
    `ensemble`: all experts, weighed by the router; `sampled`: one, drawn from the router's posterior."""
    init: Annotated[Literal["scratch", "expert", "average", "start"], ELSEWHERE] = "scratch"
    """From nothing, from the largest cluster's expert, from the mean of experts that share a start, or from
    that start itself, [start] or `expert.init`."""
    guidance: float = Field(1.0, ge=1)
    """Classifier-free guidance of the teacher, which the student then has for nothing; 1 is none."""
    guided: tuple[float, float] = Field((0.0, 0.7), strict=False)
    """The interval of t in which that guidance acts."""
    data: Literal["clusters", "drawn"] = "clusters"
    """The samples to learn at: those of the clusters, or samples drawn from the experts, without any data."""
    drawn: int = Field(50_000, ge=1)
    """How many samples the experts draw together for `data = "drawn"`."""
    resident: Annotated[int | None, OPERATIONAL] = Field(None, ge=1)
    """Teachers held on the device at once, the others waiting on disk; all by default."""
    few: Annotated[FewStepConfig | None, ELSEWHERE] = None
    """A few-step student as well, as [student.few]."""
    sites: Annotated[SitesConfig | None, ELSEWHERE] = None
    """Distil on sites, as [student.sites]."""

    @model_validator(mode="after")
    def _students_have_teachers(self) -> Self:
        if self.steps == 0 and self.few is None:
            raise ValueError("'student.steps' = 0 trains no dense student; add [student.few], or some steps")
        if self.steps == 0 and self.few is not None and "student" in (self.few.teacher, self.few.init):
            raise ValueError(
                "'student.steps' = 0 trains no dense student to learn from: set student.few.teacher and "
                "student.few.init to others, or train some steps"
            )
        if self.sites is not None and self.teacher != "label":
            raise ValueError("sites have only their own experts: leave student.teacher at 'label'")
        return self

"""Router and experts as one velocity, and samples from it."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from atoll.config import SampleConfig
from atoll.errors import ConfigError
from atoll.flow import draws, mixture, objectives, solver
from atoll.models import conditions, strategies
from atoll.models.conditions import Condition, TextCondition
from atoll.models.vocabulary import Asked, Vocabulary

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""
Finished = Callable[[Sequence[int], "Samples"], None]
"""Called with the numbers of the samples of a batch as soon as it is done, and the samples."""


@dataclass(frozen=True)
class Samples:
    """What was sampled, and by whom."""

    x_0: Float[Tensor, "num channels *grid"]
    shares: Float[Tensor, "num experts"]
    """How much of each sample's way from noise to data each expert had; every row sums to one."""

    @property
    def expert(self) -> Int[Tensor, " num"]:
        """The expert that had the largest share in each sample."""
        return self.shares.argmax(1)


@dataclass
class Ensemble:
    """Experts, each trained alone, that act as one model."""

    experts: Sequence[nn.Module]
    priors: Float[Tensor, " experts"]
    shape: tuple[int, ...]
    router: nn.Module | None = None
    classes: int = 0
    """Number of classes if the experts are told the class, else 0."""
    text: int = 0
    """Width of the states of a text if the experts are told a text, else 0."""
    defaults: SampleConfig = field(default_factory=SampleConfig)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    """What names of classes and prompts mean here."""

    @property
    def kind(self) -> conditions.Kind:
        """What the experts are told."""
        return "class" if self.classes else "text" if self.text else "none"

    @property
    def device(self) -> torch.device:
        """Where the ensemble lives."""
        return self.priors.device

    def posterior(
        self, x_t: Float[Tensor, "batch *sample"], t: Float[Tensor, " batch"], condition: Condition = None
    ) -> Float[Tensor, "batch experts"]:
        """p(k | x_t, t, condition) as the router sees it; certain where there is only one expert."""
        if len(self.experts) == 1:
            return torch.ones(len(x_t), 1, device=x_t.device)
        if self.router is None:
            raise ConfigError("this run has no router; use the strategy 'ancestral', or train the router")
        return self.router(x_t, t, condition).float().softmax(1)

    def weighted(
        self, weights: Tensor, x_t: Tensor, t: Tensor, condition: Condition, guidance: float = 1.0
    ) -> Tensor:
        """Σ_k w_k v_k, asking each expert only about the samples in which it has weight (DDM eq. 5)."""
        total = torch.zeros_like(x_t)
        for k, expert in enumerate(self.experts):
            rows = weights[:, k].nonzero()[:, 0]
            if len(rows) == 0:
                continue
            everything = len(rows) == len(x_t)
            part = [x_t, t] if everything else [x_t[rows], t[rows]]
            told = condition if everything else conditions.take(condition, rows)
            v = self._guided(expert, part[0], part[1], told, guidance)
            w = weights[rows, k].to(v.dtype).view(-1, *[1] * (x_t.ndim - 1))
            total.index_add_(0, rows, w * v)
        return total

    def velocity(
        self,
        x_t: Float[Tensor, "batch *sample"],
        t: Float[Tensor, " batch"],
        condition: Condition = None,
        strategy: str = "full",
        guidance: float = 1.0,
    ) -> Float[Tensor, "batch *sample"]:
        """The velocity at x_t, for anyone who brings a solver."""
        condition = self._condition(condition, len(x_t))
        weights = strategies.by_name(strategy)(
            self.posterior(x_t, t, condition), lambda draws: torch.rand(len(x_t), draws, device=x_t.device)
        )
        return self.weighted(weights, x_t, t, condition, guidance)

    @torch.inference_mode()
    def sample(
        self,
        num: int | None = None,
        *,
        label: Asked | None = None,
        prompt: str | Sequence[str] | None = None,
        text: TextCondition | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> Float[Tensor, "num channels *grid"]:
        """Draw samples; `settings` are those of the recipe's [sample] section, which gives the defaults."""
        return self.trace(num, label=label, prompt=prompt, text=text, progress=progress, **settings).x_0

    @torch.inference_mode()
    def trace(
        self,
        num: int | None = None,
        *,
        label: Asked | None = None,
        prompt: str | Sequence[str] | None = None,
        text: TextCondition | None = None,
        progress: Progress | None = None,
        finished: Finished | None = None,
        **settings: Any,
    ) -> Samples:
        """Draw samples and tell who made them; several labels or prompts are taken in turn."""
        how = sampling_settings(self.defaults, num=num, **settings)
        self._served(how)
        wanted = self.asked(how, label, prompt, text)
        batches = [range(i, min(i + how.batch, how.num)) for i in range(0, how.num, how.batch)]
        parts = []
        for number, indices in enumerate(batches):
            report = _part_of(progress, number * how.steps, len(batches) * how.steps)
            told = conditions.take(wanted, slice(indices.start, indices.stop))
            parts.append(self._sample_batch(indices, how, told, report))
            if finished is not None:
                finished(indices, Samples(*parts[-1]))
        x_0, shares = (torch.cat(column) for column in zip(*parts, strict=True))
        return Samples(x_0, shares)

    def _sample_batch(
        self,
        indices: range,
        how: SampleConfig,
        condition: Condition,
        report: Callable[[int], None] | None,
    ) -> tuple[Tensor, Tensor]:
        """Sample the given indices; each depends on (seed, index) alone, not on its company."""
        noise = draws.sample_noise(how.seed, indices, self.shape).to(self.device)
        condition = self._condition(condition, len(noise))
        weigh = self._weigher(how, indices, noise, condition)
        shares = torch.zeros(len(noise), len(self.experts), device=self.device)
        asked = 0

        def velocity(x_t: Tensor, t: Tensor) -> Tensor:
            nonlocal asked
            weights = weigh(x_t, t)
            shares.add_(weights)
            asked += 1
            guidance = how.guidance if how.guided[0] <= t[0] <= how.guided[1] else 1.0
            return self.weighted(weights, x_t, t, condition, guidance)

        x_0 = solver.integrate(velocity, noise, how.steps, solver.SOLVERS[how.solver](), report, how.shift)
        return x_0, shares / asked

    def resolve(self, strategy: str) -> str:
        """What `auto` means here.

        Greedy top-1 sends every sample to the cluster that wins at t = 1. That is right where a condition
        tells the clusters apart, and wrong without one, where ancestral sampling is exact and as cheap.
        """
        if strategy != "auto":
            return strategy
        return "top-1" if self.kind != "none" and self.router is not None else "ancestral"

    def _weigher(
        self, how: SampleConfig, indices: range, noise: Tensor, condition: Condition
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """The weights of the experts as a function of x_t and t."""
        strategy = self.resolve(how.strategy)
        if strategy == "ancestral":
            weights = self._ancestors(how, indices, noise, condition)
            return lambda x_t, t: weights
        choose, asked = strategies.by_name(strategy), itertools.count()

        def weigh(x_t: Tensor, t: Tensor) -> Tensor:
            purpose = f"strategy/{next(asked)}"
            posterior = self._posterior_of_served(how, self.posterior(x_t, t, condition))
            return choose(posterior, lambda n: self._uniform(how.seed, indices, purpose, n))

        return weigh

    def _uniform(self, seed: int, indices: range, purpose: str, number: int) -> Tensor:
        """Uniform numbers (batch, number) that depend on (seed, index) alone."""
        columns = [draws.sample_uniform(seed, indices, f"{purpose}/{n}") for n in range(number)]
        return torch.stack(columns, dim=1).to(self.device)

    def _served(self, how: SampleConfig) -> Tensor:
        """Which experts serve, as a mask."""
        served = torch.zeros(len(self.experts), dtype=torch.bool, device=self.device)
        wanted = range(len(self.experts)) if how.experts is None else how.experts
        if min(wanted) < 0 or max(wanted) >= len(self.experts):
            raise ConfigError(f"experts are numbered 0 to {len(self.experts) - 1}, not {list(wanted)}")
        served[list(wanted)] = True
        return served

    def _posterior_of_served(self, how: SampleConfig, posterior: Tensor) -> Tensor:
        """The posterior among those who serve, at the temperature that was asked for."""
        if how.experts is not None:
            posterior = mixture.restrict(posterior, self._served(how))
        return mixture.temper(posterior, how.temperature)

    def _ancestors(self, how: SampleConfig, indices: range, noise: Tensor, condition: Condition) -> Tensor:
        """One expert per sample, drawn from the prior or from the router given the condition.

        At t = 1 the noise says nothing of the cluster, so p(k | x_1, condition) = p(k | condition).
        """
        if condition is None or len(self.experts) == 1:
            posterior = self.priors.expand(len(noise), -1)
        else:
            posterior = self.posterior(noise, torch.ones(len(noise), device=self.device), condition)
        uniform = draws.sample_uniform(how.seed, indices, "ancestor").to(self.device)
        posterior = self._posterior_of_served(how, posterior)
        return mixture.one_hot(mixture.draw(posterior, uniform), len(self.experts))

    def _guided(
        self, expert: nn.Module, x_t: Tensor, t: Tensor, condition: Condition, guidance: float
    ) -> Tensor:
        """One expert's velocity; the conditional and unconditional halves of guidance in one batch."""
        if guidance == 1 or condition is None:
            return expert(x_t, t, condition).to(x_t.dtype)
        told = conditions.concatenate([condition, conditions.null(condition, self.classes)])
        both = expert(torch.cat([x_t, x_t]), torch.cat([t, t]), told).to(x_t.dtype)
        return objectives.guide(both[: len(x_t)], both[len(x_t) :], guidance)

    def _condition(self, condition: Condition, batch: int) -> Condition:
        """The condition as experts take it; where there could be one and is none, the null condition."""
        if self.kind == "none":
            return None
        if condition is None:
            return conditions.nothing(self.kind, batch, self.classes, self.text, self.device)
        return condition.to(self.device)

    def asked(
        self,
        how: SampleConfig,
        label: Asked | None,
        prompt: str | Sequence[str] | None,
        text: TextCondition | None,
    ) -> Condition:
        """What all samples of a request are told."""
        numbers = self.vocabulary.labels(label, self.kind)
        prompt = prompt if prompt is not None or not self.text or text is not None else how.prompts or None
        text = self.vocabulary.texts(prompt, self.kind) if prompt is not None else text
        return self._texts(text, how.num) if self.text else self._labels(numbers, how.num)

    def _labels(self, label: Sequence[int] | None, num: int) -> Tensor | None:
        """Classes for `num` samples, in turn; all of them by default."""
        if not self.classes:
            return None
        wanted = range(self.classes) if label is None else label
        if not wanted or min(wanted) < 0 or max(wanted) >= self.classes:
            raise ConfigError(f"classes are numbered 0 to {self.classes - 1}, not {list(wanted)}")
        return torch.tensor([wanted[i % len(wanted)] for i in range(num)], device=self.device)

    def _texts(self, text: TextCondition | None, num: int) -> Condition:
        """Texts for `num` samples: those given, in turn."""
        if text is None:
            return None
        return text[torch.arange(num) % len(text)].to(self.device)


def sampling_settings(defaults: SampleConfig, **changes: Any) -> SampleConfig:
    """The settings of one request: the recipe's, with what was said explicitly."""
    said = {key: value for key, value in changes.items() if value is not None}
    unknown = said.keys() - SampleConfig.model_fields.keys()
    if unknown:
        raise ConfigError(f"unknown sampling setting {', '.join(sorted(unknown))}")
    try:
        return SampleConfig.model_validate({**defaults.model_dump(), **said})
    except ValueError as error:
        raise ConfigError(_first_problem(error)) from None


def _first_problem(error: ValueError) -> str:
    problem = error.errors()[0]  # type: ignore[attr-defined]
    name, value = problem["loc"][0], problem["input"]
    if name == "strategy":
        return f"unknown strategy {value!r}; use {strategies.NAMES}"
    return f"{name} = {value!r}: {problem['msg'].lower()}"


def _part_of(progress: Progress | None, done: int, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda step: progress(done + step, total)

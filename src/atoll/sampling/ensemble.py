"""Router and experts as one velocity, and samples from it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from atoll.config import STRATEGIES, SampleConfig
from atoll.errors import ConfigError
from atoll.flow import draws, mixture, objectives, solver
from atoll.models import conditions
from atoll.models.conditions import Condition, TextCondition
from atoll.sampling import routing, strategies
from atoll.sampling.roster import Experts, Roster
from atoll.sampling.vocabulary import Asked, Prompts, Vocabulary

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""
Finished = Callable[[Sequence[int], "Samples"], None]
"""Called with the numbers of some samples as soon as they are done, and the samples."""


Weigh = Callable[[Tensor, Tensor], Tensor]
"""The weights of the experts from x_t and t."""


@dataclass(frozen=True)
class Samples:
    """What was sampled, and by whom."""

    x_0: Float[Tensor, "num channels *grid"]
    weights: Float[Tensor, "asked num experts"]
    """The weight of each expert each time that the velocity was asked for, from noise to data."""
    disagreement: Float[Tensor, "asked num"]
    """How far the active experts were apart: Σ_k w_k |v_k - v|² / |v|²; zero where one was asked."""
    times: tuple[float, ...]
    """The times at which the velocity was asked for."""
    strategy: str
    certainty: float | None
    """How sure the router was at t = 1, where that was looked at."""

    @property
    def shares(self) -> Float[Tensor, "num experts"]:
        """How much of each sample's way each expert had; every row sums to one."""
        return self.weights.mean(0)

    @property
    def expert(self) -> Int[Tensor, " num"]:
        """The expert that had the largest share in each sample."""
        return self.shares.argmax(1)

    @property
    def switches(self) -> Int[Tensor, " num"]:
        """How often the leading expert of each sample changed on the way."""
        leading = self.weights.argmax(2)
        return (leading[1:] != leading[:-1]).sum(0)


@dataclass(frozen=True)
class _Part:
    """Some of the samples: their numbers, what they are told, and their expert if it is fixed."""

    indices: list[int]
    condition: Condition
    expert: int | None = None


@dataclass
class Ensemble:
    """Experts, each trained alone, that act as one model."""

    experts: Experts
    priors: Float[Tensor, " experts"]
    shape: tuple[int, ...]
    router: nn.Module | None = None
    classes: int = 0
    """Number of classes if the experts are told the class, else 0."""
    text: int = 0
    """Width of the states of a text if the experts are told a text, else 0."""
    defaults: SampleConfig = field(default_factory=SampleConfig)
    band: routing.Band = field(default_factory=routing.Band)
    """The times between which the router is asked."""
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    """What names of classes and prompts mean here."""
    maps: bool = False
    """Whether the only expert is a flow map, whose steps are exact whatever their length."""
    by_class: Float[Tensor, "classes_and_none experts"] | None = None
    """p(k | class), if it is known: the last row is for no class."""

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
        return self.weighted(weights, x_t, t, condition, guidance)[0]

    def weighted(
        self,
        weights: Tensor,
        x_t: Tensor,
        t: Tensor,
        condition: Condition,
        guidance: float = 1.0,
        batch: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Σ_k w_k v_k, asking each expert only about the samples in which it has weight (DDM eq. 5).

        And how far the experts were apart, by Σ_k w_k |v_k - v|² = Σ_k w_k |v_k|² - |v|². At most `batch`
        samples go through an expert at once.
        """
        total = torch.zeros_like(x_t)
        square = torch.zeros(len(x_t), device=x_t.device)
        for k, rows in self._asked_about(weights, batch or len(x_t)):
            everything = len(rows) == len(x_t)
            v = self._guided(
                self.experts[k],
                x_t if everything else x_t[rows],
                t if everything else t[rows],
                condition if everything else conditions.take(condition, rows),
                guidance,
            )
            w = weights[rows, k].to(v.dtype)
            total.index_add_(0, rows, w.view(-1, *[1] * (x_t.ndim - 1)) * v)
            square.index_add_(0, rows, (w * v.square().flatten(1).sum(1)).float())
        length = total.square().flatten(1).sum(1).float()
        return total, (square / length.clamp(min=1e-12) - 1).clamp(min=0)

    @staticmethod
    def _asked_about(weights: Tensor, batch: int) -> Iterator[tuple[int, Tensor]]:
        """Each expert that is needed, with the samples that need it, a batch at a time."""
        for k in weights.any(0).nonzero()[:, 0].tolist():
            for rows in torch.split(weights[:, k].nonzero()[:, 0], batch):
                yield k, rows

    def sample(
        self,
        num: int | None = None,
        *,
        label: Asked | None = None,
        prompt: Prompts | None = None,
        text: TextCondition | None = None,
        cluster: Sequence[int] | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> Float[Tensor, "num channels *grid"]:
        """Draw samples; `settings` are those of the recipe's [sample] section, which gives the defaults."""
        return self.trace(
            num, label=label, prompt=prompt, text=text, cluster=cluster, progress=progress, **settings
        ).x_0

    @torch.inference_mode()
    def trace(
        self,
        num: int | None = None,
        *,
        label: Asked | None = None,
        prompt: Prompts | None = None,
        text: TextCondition | None = None,
        cluster: Sequence[int] | None = None,
        progress: Progress | None = None,
        finished: Finished | None = None,
        **settings: Any,
    ) -> Samples:
        """Draw samples and tell who made them; several labels or prompts are taken in turn.

        `cluster` gives each sample its expert for the strategy `oracle`.
        """
        how = sampling_settings(self.defaults, num=num, **settings)
        self._served(how)
        if self.maps and how.guidance != 1:
            raise ConfigError("a few-step student cannot be guided afterwards; bake it in: student.guidance")
        told = self._asked(how, label, prompt, text)
        strategy, certainty = self.resolve(how, told)
        if strategy == "oracle" and (cluster is None or len(cluster) != how.num):
            raise ConfigError("the strategy 'oracle' needs the cluster of every sample")
        parts = self._parts(how, strategy, told, cluster)
        done = []
        for number, part in enumerate(parts):
            report = _part_of(progress, number * how.steps, len(parts) * how.steps)
            self._expect(parts[number + 1 :])
            done.append(self._sample_part(part, how, strategy, report))
            if finished is not None:
                finished(part.indices, done[-1])
        order = torch.tensor([index for part in parts for index in part.indices]).argsort()
        order = order.to(self.device)
        return Samples(
            x_0=torch.cat([found.x_0 for found in done])[order],
            weights=torch.cat([found.weights for found in done], dim=1)[:, order],
            disagreement=torch.cat([found.disagreement for found in done], dim=1)[:, order],
            times=done[0].times,
            strategy=strategy,
            certainty=certainty,
        )

    def resolve(self, how: SampleConfig, condition: Condition) -> tuple[str, float | None]:
        """What `auto` means here, and how sure the cluster is at t = 1.

        Greedy top-1 sends every sample to the cluster that wins at t = 1. That is right where the condition
        tells the cluster, and wrong where it does not: there ancestral sampling is exact and as cheap.
        """
        if how.strategy != "auto":
            return how.strategy, None
        if self.kind == "none" or self.router is None or len(self.experts) == 1:
            return "ancestral", None
        few = range(min(how.num, 64))
        told = self._condition(conditions.take(condition, slice(0, len(few))), len(few))
        certainty = routing.certainty(self._at_noise(how, few, told))
        return ("top-1" if certainty >= routing.SURE else "ancestral"), certainty

    def _parts(
        self, how: SampleConfig, strategy: str, told: Condition, cluster: Sequence[int] | None
    ) -> list[_Part]:
        """What is made together: by expert where each sample keeps one, to load each once.

        Otherwise as many as give every expert a full batch, if they spread evenly: eight experts that are
        asked about eight samples each cost more than one that is asked about 64.
        """
        batches = [range(i, min(i + how.batch, how.num)) for i in range(0, how.num, how.batch)]
        if strategy not in ("ancestral", "oracle"):
            room = how.batch * int(self._served(how).sum())
            together = [range(i, min(i + room, how.num)) for i in range(0, how.num, room)]
            return [_Part(list(some), self._told(told, list(some))) for some in together]
        if cluster is None:
            drawn = [self._ancestors(how, batch, self._told(told, list(batch))) for batch in batches]
            cluster = torch.cat(drawn).tolist()
        elif min(cluster) < 0 or max(cluster) >= len(self.experts):
            raise ConfigError(f"clusters are numbered 0 to {len(self.experts) - 1}")
        parts = []
        for expert in sorted(set(cluster)):
            own = [index for index, k in enumerate(cluster) if k == expert]
            for i in range(0, len(own), how.batch):
                some = own[i : i + how.batch]
                parts.append(_Part(some, self._told(told, some), expert))
        return parts

    def _expect(self, coming: list[_Part]) -> None:
        """Have the expert of the next batch fetched while this one is made."""
        if coming and coming[0].expert is not None and isinstance(self.experts, Roster):
            self.experts.expect(coming[0].expert)

    def _told(self, told: Condition, indices: list[int]) -> Condition:
        """What these samples are told, as experts take it."""
        some = conditions.take(told, torch.tensor(indices, device=self.device))
        return self._condition(some, len(indices))

    def _sample_part(
        self, part: _Part, how: SampleConfig, strategy: str, report: Callable[[int], None] | None
    ) -> Samples:
        """Sample some indices; each depends on (seed, index) alone, not on its company."""
        noise = draws.sample_noise(how.seed, part.indices, self.shape).to(self.device)
        if self.maps:
            return self._jump(noise, part.condition, how, report)
        weigh = self._weigher(part, how, strategy)
        weights, apart, times = [], [], []

        def velocity(x_t: Tensor, t: Tensor) -> Tensor:
            now = float(t[0])
            guidance = how.guidance if how.guided[0] <= now <= how.guided[1] else 1.0
            weights.append(weigh(x_t, t))
            v, disagreement = self.weighted(weights[-1], x_t, t, part.condition, guidance, how.batch)
            apart.append(disagreement)
            times.append(now)
            return v

        x_0 = solver.integrate(velocity, noise, how.steps, solver.SOLVERS[how.solver](), report, how.shift)
        return Samples(x_0, torch.stack(weights), torch.stack(apart), tuple(times), strategy, None)

    def _jump(
        self, noise: Tensor, condition: Condition, how: SampleConfig, report: Callable[[int], None] | None
    ) -> Samples:
        """Sample by the steps of a flow map."""
        times: list[float] = []

        def average(x_t: Tensor, t: Tensor, r: Tensor) -> Tensor:
            times.append(float(t[0]))
            return self.experts[0](x_t, t, condition, r).to(x_t.dtype)

        x_0 = solver.integrate(average, noise, how.steps, solver.jump, report, how.shift)
        asked = len(times), len(noise)
        sure = torch.ones(*asked, 1, device=self.device)
        return Samples(x_0, sure, torch.zeros(asked, device=self.device), tuple(times), "ancestral", None)

    def _weigher(self, part: _Part, how: SampleConfig, strategy: str) -> Weigh:
        """The weights of the experts as a function of x_t and t."""
        if part.expert is not None:
            experts = torch.full((len(part.indices),), part.expert, device=self.device)
            fixed = mixture.one_hot(experts, len(self.experts))
            return lambda x_t, t: fixed
        choose, asked = strategies.by_name(strategy), itertools.count()
        band = self.band if how.band else routing.Band()

        everyone = torch.arange(len(part.indices), device=self.device)

        def routed(x_t: Tensor, t: Tensor, rows: Tensor) -> Tensor:
            told = [conditions.take(part.condition, some) for some in torch.split(rows, how.batch)]
            batches = zip(torch.split(x_t, how.batch), torch.split(t, how.batch), told, strict=True)
            return torch.cat([self.posterior(*batch) for batch in batches])

        posterior = routing.in_band(routed, band)

        def weigh(x_t: Tensor, t: Tensor) -> Tensor:
            purpose = f"strategy/{next(asked)}"
            p = self._posterior_of_served(how, posterior(x_t, t, everyone))
            return choose(p, lambda number: self._uniform(how.seed, part.indices, purpose, number))

        return weigh

    def _ancestors(self, how: SampleConfig, indices: range, condition: Condition) -> Int[Tensor, " batch"]:
        """One expert per sample, drawn from the prior, or given the condition."""
        uniform = draws.sample_uniform(how.seed, indices, "ancestor").to(self.device)
        return mixture.draw(self._at_noise(how, indices, condition), uniform)

    def _at_noise(self, how: SampleConfig, indices: range, condition: Condition) -> Tensor:
        """p(k | condition): the prior, the shares of the class, or what the router says at t = 1.

        There the noise says nothing, so that only a router that was told a text knows more than counts do.
        """
        if condition is None or len(self.experts) == 1:
            return self._posterior_of_served(how, self.priors.expand(len(indices), -1))
        if self.by_class is not None and isinstance(condition, Tensor):
            return self._posterior_of_served(how, self.by_class[condition])
        noise = draws.sample_noise(how.seed, indices, self.shape).to(self.device)
        end = torch.ones(len(noise), device=self.device)
        return self._posterior_of_served(how, self.posterior(noise, end, condition))

    def _uniform(self, seed: int, indices: list[int], purpose: str, number: int) -> Tensor:
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

    def _asked(
        self, how: SampleConfig, label: Asked | None, prompt: Prompts | None, text: TextCondition | None
    ) -> Condition:
        """What all samples of a request are told."""
        numbers = self.vocabulary.labels(label, self.kind)
        if prompt is None and text is None and self.kind == "text":
            prompt = how.prompts or None
        text = text if prompt is None else self.vocabulary.texts(prompt, self.kind)
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
        return f"unknown strategy {value!r}; use {STRATEGIES}"
    return f"{name} = {value!r}: {problem['msg'].lower()}"


def _part_of(progress: Progress | None, done: int, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda step: progress(done + step, total)

"""Router and experts as one velocity: pure functions of x_t, t and what is told."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.flow import mixture, objectives
from atoll.models import conditions
from atoll.models.conditions import Condition
from atoll.sampling import passes, routing, strategies
from atoll.sampling.entering import Entering
from atoll.sampling.grouping import Bundle, Group, bundles, everyone, groups, rows_of
from atoll.sampling.roster import Experts
from atoll.sampling.shelf import Shelf

Guidance = float | Float[Tensor, " batch"]
"""Classifier-free guidance, one for all rows or one for each; 1 is none."""
WEAK = -1
"""In the place of an expert's number: the weak network."""
FEW = 2e6
"""Multiplications of a product: with fewer of them, networks of one build are rather asked together."""
Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Asking(Protocol):
    """Has questions answered, in their order: `map`, or something that asks several at once."""

    def __call__(
        self, answer: Callable[[Question], Answer], questions: Iterable[Question], /
    ) -> Iterable[Answer]:
        """One answer for each question."""


@dataclass(frozen=True)
class Ensemble:
    """Experts, each trained alone, that act as one model.

    Nothing in it changes when it is asked, so that several threads may ask at once, and every row of a batch
    is on its own: rows of many requests, each at its own time, may be asked about together.
    """

    experts: Experts
    priors: Float[Tensor, " experts"]
    shape: tuple[int, ...]
    router: nn.Module | None = None
    classes: int = 0
    """Number of classes if the experts are told the class, else 0."""
    text: int = 0
    """Width of the states of a text if the experts are told a text, else 0."""
    band: routing.Band = field(default_factory=routing.Band)
    """The times between which the router is asked."""
    maps: bool = False
    """Whether the only expert is a flow map, whose steps are exact whatever their length."""
    by_class: Float[Tensor, "classes_and_none experts"] | None = None
    """p(k | class), if it is known: the last row is for no class."""
    absent: frozenset[int] = frozenset()
    """Parts that nobody may ask: dropped ones, missing ones, those that a rule leaves out."""
    product: float | None = None
    """Multiplications of an expert's smallest matrix product for one row, if they are known."""
    weak: nn.Module | None = None
    """What guidance moves away from, if not from the same experts told nothing: what they began with."""
    entry: Entering | None = None
    """Where samples enter, if not at noise, and by which moments of every expert's samples."""
    shelf: Shelf | None = None
    """Who loads experts from their folders, where others may be put in their places."""

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
        """p(k | x_t, t, condition) as the router sees it, in float32; certain where there is one expert."""
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
        guidance: Guidance = 1.0,
    ) -> Float[Tensor, "batch *sample"]:
        """The velocity at x_t, for anyone who brings a solver."""
        condition = self.told(condition, len(x_t))
        weights = strategies.by_name(strategy)(
            self.posterior(x_t, t, condition), lambda draws: torch.rand(len(x_t), draws, device=x_t.device)
        )
        return self.mixed(weights, x_t, t, condition, guidance).velocity

    def mixed(
        self,
        weights: Float[Tensor, "batch experts"],
        x_t: Float[Tensor, "batch *sample"],
        t: Float[Tensor, " batch"],
        condition: Condition,
        guidance: Guidance = 1.0,
        questions: Sequence[Bundle] | None = None,
        ask: Asking = map,
        most: int | None = None,
        *,
        apart: bool = False,
        rest: bool = False,
    ) -> mixture.Combined:
        """Σ_k w_k v_k, asking each expert only about the rows in which it has weight (DDM eq. 5).

        `questions` are those rows, if they are known already; `ask` has them answered one after the other,
        or several at once, each about at most `most` rows. A weak network is asked once about each row and
        not by every expert: with weights that sum to one, moving the sum away is moving every part away.
        With `apart` what each expert adds is told as well. With `rest` the weights may sum to less than one,
        and the weak network has what is missing: v_0 + g Σ_k w_k (v_k - v_0), which is to be guided less.
        """
        if rest:
            kept = weights.sum(1)
            weights, guidance = weights / kept[:, None], guidance * kept

        def answer(bundle: Bundle) -> list[mixture.Answer]:
            if bundle[0].expert != WEAK:
                return self._answers(bundle, x_t, t, condition, guidance)
            assert self.weak is not None
            rows = bundle[0].rows
            v = self.weak(x_t[rows], t[rows], conditions.take(condition, rows)).to(x_t.dtype)
            return [mixture.Answer(WEAK, rows, v)]

        asked = self.bundles(groups(weights), len(x_t)) if questions is None else questions
        weak = [] if self.weak is None else _guided_rows(guidance, len(x_t), most)
        answers = itertools.chain.from_iterable(ask(answer, [*((one,) for one in weak), *asked]))
        others = [next(answers) for _ in weak]
        mixed = mixture.combine(weights, answers, apart=apart)
        velocity, parts = mixed.velocity, mixed.parts
        for _, rows, v in others:
            scale = guidance[rows] if isinstance(guidance, Tensor) else guidance
            velocity = _moved(velocity, v, scale, rows)
            if parts is not None:
                parts = _moved(parts, _shared(weights[rows], v), scale, rows)
        return mixed._replace(velocity=velocity, parts=parts)

    def bundles(self, groups: Sequence[Group], size: int, most: int | None = None) -> list[Bundle]:
        """These questions, those to experts that are alike together, at most so many rows at once."""
        few = int(FEW / self.product) if self.product else 0
        return bundles(groups, getattr(self.experts, "kin", ()), size, most, few)

    def average(
        self,
        x_t: Float[Tensor, "batch *sample"],
        t: Float[Tensor, " batch"],
        r: Float[Tensor, " batch"],
        condition: Condition,
        questions: Iterable[slice],
        ask: Asking = map,
    ) -> Float[Tensor, "batch *sample"]:
        """The average velocity from t down to r of a flow map, which is the only expert."""
        expert = self.experts[0]

        def answer(rows: slice) -> Tensor:
            return expert(x_t[rows], t[rows], conditions.take(condition, rows), r[rows]).to(x_t.dtype)

        return torch.cat(list(ask(answer, questions)))

    def _answers(
        self, bundle: Bundle, x_t: Tensor, t: Tensor, condition: Condition, guidance: Guidance
    ) -> list[mixture.Answer]:
        """The velocities of one expert, or of several adapters of one base in one pass, at their rows."""
        experts = [self.experts[group.expert] for group in bundle]
        if len(bundle) == 1:
            rows, network = bundle[0].rows, passes.Alone(experts[0])
            v = self._guided(network, x_t, t, condition, guidance, rows)
            return [mixture.Answer(bundle[0].expert, rows, v)]
        counts = [rows_of(group, len(x_t)) for group in bundle]
        everything = torch.arange(len(x_t), device=x_t.device)
        rows = torch.cat([everything[group.rows] for group in bundle])
        v = self._guided(passes.Together(experts, counts), x_t, t, condition, guidance, rows)
        parts = zip(bundle, torch.split(v, counts), strict=True)
        return [mixture.Answer(group.expert, group.rows, own) for group, own in parts]

    def _guided(
        self,
        network: passes.Pass,
        x_t: Tensor,
        t: Tensor,
        condition: Condition,
        guidance: Guidance,
        asked: mixture.Rows,
    ) -> Tensor:
        """The velocity at some rows; the conditional and unconditional halves of guidance in one batch.

        Rows whose own guidance is 1 have no unconditional half. Where there is a weak network, `mixed` asks
        it in place of that half, about what experts are told: autoguidance (arXiv 2406.02507, eq. 3).
        """
        x_t, t, condition = x_t[asked], t[asked], conditions.take(condition, asked)
        if isinstance(guidance, Tensor):
            guidance = guidance[asked]
        plain = condition is None or self.weak is not None
        if plain or (not isinstance(guidance, Tensor) and guidance == 1):
            return network.once()(x_t, t, condition).to(x_t.dtype)
        rows: mixture.Rows = slice(None)
        if isinstance(guidance, Tensor):
            rows = (guidance != 1).nonzero()[:, 0]
            guidance = guidance[rows]
        assert condition is not None
        null = conditions.null(conditions.take(condition, rows), self.classes)
        both = conditions.concatenate([condition, null])
        expert = network.twice(rows)
        answer = expert(torch.cat([x_t, x_t[rows]]), torch.cat([t, t[rows]]), both).to(x_t.dtype)
        return _moved(answer[: len(x_t)], answer[len(x_t) :], guidance, rows)

    def told(self, condition: Condition, batch: int) -> Condition:
        """The condition as experts take it; where there could be one and is none, the null condition."""
        if self.kind == "none":
            return None
        if condition is None:
            return conditions.nothing(self.kind, batch, self.classes, self.text, self.device)
        return condition.to(self.device)


def _guided_rows(guidance: Guidance, size: int, most: int | None) -> list[Group]:
    """The rows that are guided at all, at most so many at once."""
    if not isinstance(guidance, Tensor):
        return [] if guidance == 1 else everyone(WEAK, size, most)
    rows = (guidance != 1).nonzero()[:, 0]
    if len(rows) == size:
        return everyone(WEAK, size, most)
    return [Group(WEAK, some) for some in torch.split(rows, most or size)] if len(rows) else []


def _shared(weights: Tensor, velocity: Tensor) -> Tensor:
    """A velocity shared out by weights, (batch, experts, *sample)."""
    return weights.view(*weights.shape, *[1] * (velocity.ndim - 1)).to(velocity.dtype) * velocity[:, None]


def _moved(strong: Tensor, weak: Tensor, guidance: Guidance, rows: mixture.Rows) -> Tensor:
    """Velocities of which some rows are moved away from those of a weaker model."""
    guided = objectives.guide(strong[rows], weak, guidance)
    if isinstance(rows, slice):
        return (
            guided
            if len(guided) == len(strong)
            else torch.cat([strong[: rows.start], guided, strong[rows.stop :]])
        )
    return strong.index_copy(0, rows, guided)

"""Samples under way, one row each: of many requests, each with a time, a solver and a weighing of its own.

A step asks every expert once about all rows that need it. A sample does not depend on its company.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.flow import mixture, path, solver
from atoll.models import conditions
from atoll.models.conditions import Condition, TextCondition
from atoll.sampling import parts, routing, strategies, ways
from atoll.sampling.abreast import Crew, crew
from atoll.sampling.ensemble import Ensemble, Guidance
from atoll.sampling.grouping import Bundle, groups, slices
from atoll.sampling.request import Request

Owner = TypeVar("Owner", bound=Hashable)


@dataclass(eq=False)
class Row(Generic[Owner]):
    """One sample under way, as far as it need not be on the device."""

    owner: Owner
    """Who wants it."""
    request: Request
    index: int
    """Its number in the request."""
    strategy: str
    expert: int | None
    """Who makes it, where that is fixed; else the router is asked on the way."""
    moves: Sequence[solver.Move]
    at: int = 0
    """How many of the moves are done."""
    settled: bool = False
    """Whether the router has said its last word."""

    @property
    def done(self) -> bool:
        """Whether it has arrived at data."""
        return self.at == len(self.moves)

    @property
    def t(self) -> float:
        """The time at which it is asked about next."""
        return self.moves[self.at].t

    @property
    def guidance(self) -> float:
        """The guidance of its next step."""
        settings = self.request.settings
        return settings.guidance if settings.guided[0] <= self.t <= settings.guided[1] else 1.0

    @property
    def draws(self) -> bool:
        """Whether its experts are drawn anew at every step."""
        return self.strategy.startswith(("sample", "nucleus"))

    @property
    def traced(self) -> bool:
        """Whether it is wanted what each expert moves of it; who is asked alone moves all."""
        return self.request.settings.provenance and self.expert is None

    @property
    def weighing(self) -> tuple[str, float, tuple[int, ...] | None, bool, str]:
        """Rows that agree in this are weighed together."""
        settings = self.request.settings
        return self.strategy, settings.temperature, settings.experts, settings.protect, settings.rest


class Stepped(NamedTuple):
    """What one step asked and heard, row by row."""

    x_t: Float[Tensor, "batch *sample"]
    t: Float[Tensor, " batch"]
    velocity: Float[Tensor, "batch *sample"]
    weights: Float[Tensor, "batch experts"]
    disagreement: Float[Tensor, " batch"]

    def x_0(self, rows: Sequence[int]) -> Float[Tensor, "some *sample"]:
        """What some rows will be, as far as one can tell by now."""
        where = torch.tensor(rows, device=self.x_t.device)
        return path.data_prediction(self.x_t[where], self.velocity[where], self.t[where])


def moves_of(ensemble: Ensemble, request: Request) -> list[solver.Move]:
    """The way of every sample of a request."""
    settings = request.settings
    name = "euler" if ensemble.maps else settings.solver
    return solver.moves(name, settings.steps, settings.shift, parts.entry(ensemble, request))


def started(
    ensemble: Ensemble, owner: Owner, request: Request, strategy: str, indices: Sequence[int]
) -> list[Row[Owner]]:
    """Rows of some samples of a request, before their first step."""
    moves = moves_of(ensemble, request)
    experts: Sequence[int | None] = [None] * len(indices)
    if parts.keeps_expert(ensemble, strategy):
        experts = parts.experts(ensemble, request, indices)
    pairs = zip(indices, experts, strict=True)
    return [Row(owner, request, index, strategy, expert, moves) for index, expert in pairs]


class _Questions(NamedTuple):
    """Who is asked about which rows, for as long as neither weights nor rows change."""

    numbers: tuple[int, ...]
    bundles: list[Bundle]


class Rows(Generic[Owner]):
    """Rows of one ensemble that are stepped together, with their state on its device."""

    def __init__(self, ensemble: Ensemble, most: int = 64) -> None:
        """`most` rows are asked about in one forward pass."""
        self.ensemble, self.most = ensemble, most
        self.rows: list[Row[Owner]] = []
        count, device = len(ensemble.experts), ensemble.device
        self._x = torch.empty(0, *ensemble.shape, device=device)
        self._memory = torch.empty_like(self._x)
        self._posterior = torch.empty(0, count, device=device)
        self._weights = torch.empty(0, count, device=device)
        self._shares = torch.empty(0, count, device=device)
        self._ways: dict[Row[Owner], Tensor] = {}
        """Of rows that are traced: what each expert has moved, and the solver's memory of it."""
        self._condition: Condition = None
        self._questions: _Questions | None = None
        self._crews: dict[tuple[int, bool, int], Crew] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @torch.inference_mode()
    def join(self, new: Sequence[Row[Owner]]) -> None:
        """Take in rows; they take part from the next step on."""
        for some in _by_request(new).values():
            request = some[0].request
            indices = [row.index for row in some]
            condition = request.told(indices, self.ensemble)
            several = [self._condition, condition]
            self._condition = condition if not self.rows else conditions.concatenate(several)
            noise = parts.entered(self.ensemble, request, indices, [row.expert for row in some])
            self._x = torch.cat([self._x, noise])
            self._memory = torch.cat([self._memory, torch.zeros_like(noise)])
            weights = self._first_weights(some)
            self._weights = torch.cat([self._weights, weights])
            self._posterior = torch.cat([self._posterior, torch.zeros_like(weights)])
            self._shares = torch.cat([self._shares, torch.zeros_like(weights)])
            self._ways |= {
                row: noise.new_zeros(2, weights.shape[1], *noise.shape[1:]) for row in some if row.traced
            }
            self.rows.extend(some)
        self._questions = None
        self._crews.clear()

    def _first_weights(self, rows: Sequence[Row[Owner]]) -> Tensor:
        count, device = len(self.ensemble.experts), self.ensemble.device
        experts = torch.tensor([row.expert or 0 for row in rows], device=device)
        return mixture.one_hot(experts, count)

    @torch.inference_mode()
    def leave(self, numbers: Sequence[int]) -> None:
        """Let rows go, done or not."""
        gone = set(numbers)
        kept = [number for number in range(len(self.rows)) if number not in gone]
        for number in gone:
            self._ways.pop(self.rows[number], None)
        self.rows = [self.rows[number] for number in kept]
        where = self._at(kept)
        self._x, self._memory = self._x[where], self._memory[where]
        self._posterior, self._weights = self._posterior[where], self._weights[where]
        self._shares = self._shares[where]
        self._condition = _trimmed(conditions.take(self._condition, where)) if kept else None
        self._questions = None

    def x(self, numbers: Sequence[int]) -> Tensor:
        """Where some rows are."""
        return self._x[self._at(numbers)]

    def shares(self, numbers: Sequence[int]) -> Tensor:
        """How much of the way of some rows each expert has had."""
        steps = torch.tensor([self.rows[number].at for number in numbers], device=self.ensemble.device)
        some = self._shares[self._at(numbers)]
        return some / steps.clamp(min=1)[:, None]

    @torch.inference_mode()
    def moved(self, numbers: Sequence[int]) -> Tensor:
        """How much of the way of some rows each expert went so far, (some, experts); signed."""
        some = self._weights[self._at(numbers)].clone()
        for place, number in enumerate(numbers):
            if (way := self._ways.get(self.rows[number])) is not None:
                some[place] = ways.shares(way[None, 0])[0]
        return some

    @torch.inference_mode()
    def step(self, chosen: Sequence[int] | None = None) -> Stepped:
        """One question to the velocity and one move, of all rows or of some."""
        numbers = range(len(self.rows)) if chosen is None else chosen
        rows = [self.rows[number] for number in numbers]
        assert rows, "somebody takes a step"
        where = self._where(numbers)
        table = [row.moves[row.at] for row in rows]
        now = torch.tensor(table, dtype=torch.float32).to(self.ensemble.device, non_blocking=True)
        x_t, t = _some(self._x, where), now[:, 0]
        condition = conditions.take(self._condition, where)
        if self.ensemble.maps:
            mixed = self._average(x_t, t, now[:, 1], condition)
        else:
            self._weigh(numbers, rows, x_t, t, condition)
            mixed = self._mixed(numbers, rows, x_t, t, condition)
        kept = _some(self._memory, where) if any(move.remembers for move in table) else None
        x_next, memory = solver.moved(now, x_t, mixed.velocity, kept)
        if mixed.parts is not None:
            self._move_parts(rows, now, mixed.parts)
        weights = _some(self._weights, where)
        self._x = _put(self._x, where, x_next)
        if memory is not None:
            self._memory = _put(self._memory, where, memory)
        if isinstance(where, slice):
            self._shares += weights
        else:
            self._shares[where] += weights
        for row in rows:
            row.at += 1
        return Stepped(x_t, t, mixed.velocity, weights, mixed.disagreement)

    def _move_parts(self, rows: Sequence[Row[Owner]], now: Tensor, parts: Tensor) -> None:
        """Move what each expert has moved of traced rows as the rows themselves are moved."""
        places = [place for place, row in enumerate(rows) if row.traced]
        before, where = torch.stack([self._ways[rows[place]] for place in places]), self._at(places)
        moved, memory = solver.moved(now[where], before[:, 0], parts[where], before[:, 1])
        assert memory is not None, "it was given one"
        for place, way in zip(places, torch.stack([moved, memory], 1), strict=True):
            self._ways[rows[place]] = way

    def _at(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.ensemble.device)

    def _where(self, numbers: Sequence[int]) -> mixture.Rows:
        """Rows by number; all of them are taken without being copied."""
        if len(numbers) == len(self.rows):
            return slice(None)
        return self._at(numbers)

    def _crew(self, rows: int, *, several: bool = True, among: int = 1) -> Crew:
        """Who answers about so many rows, which so many experts have between them.

        What a machine grants is written in files: they are read again when rows join, not at every step.
        """
        key = rows, several, among
        if key not in self._crews:
            self._crews[key] = crew(self.ensemble, rows, self.most, several=several, among=among)
        return self._crews[key]

    def _average(self, x_t: Tensor, t: Tensor, r: Tensor, condition: Condition) -> mixture.Combined:
        """The answer of a flow map, which is told where the step ends as well."""
        ensemble, at_once = self.ensemble, self._crew(len(x_t), several=False)
        with at_once.at_work():
            velocity = ensemble.average(x_t, t, r, condition, slices(len(x_t), at_once.rows), at_once.ask)
        return mixture.Combined(velocity, torch.zeros_like(t))

    def _mixed(
        self,
        numbers: Sequence[int],
        rows: Sequence[Row[Owner]],
        x_t: Tensor,
        t: Tensor,
        condition: Condition,
    ) -> mixture.Combined:
        weights = _some(self._weights, self._where(numbers))
        experts = {row.expert for row in rows}
        at_once = self._crew(len(numbers), among=1 if None in experts else len(experts))
        if self._questions is None or self._questions.numbers != tuple(numbers):
            some = self.ensemble.bundles(groups(weights, at_once.rows), len(numbers), at_once.rows)
            self._questions = _Questions(tuple(numbers), some)
        scales = [row.guidance for row in rows]
        guidance: Guidance = 1.0
        if any(scale != 1 for scale in scales):
            guidance = torch.tensor(scales, device=self.ensemble.device)
        with at_once.at_work():
            return self.ensemble.mixed(
                weights,
                x_t,
                t,
                condition,
                guidance,
                self._questions.bundles,
                at_once.ask,
                at_once.rows,
                apart=any(row.traced for row in rows),
                rest=any(row.request.settings.rest == "start" for row in rows),
            )

    def _weigh(
        self,
        numbers: Sequence[int],
        rows: Sequence[Row[Owner]],
        x_t: Tensor,
        t: Tensor,
        condition: Condition,
    ) -> None:
        """Ask the router about the rows on which it may change its mind, and weigh those anew."""
        places = [place for place, row in enumerate(rows) if row.expert is None]
        if not places:
            return
        asked = self._asked(numbers, rows, places)
        at_once = self._crew(len(asked), several=False)

        def posterior(some: Sequence[int]) -> Tensor:
            where = self._at(some)
            return self.ensemble.posterior(x_t[where], t[where], conditions.take(condition, where))

        if asked:
            with at_once.at_work():
                posteriors = list(at_once.ask(posterior, parts.batches(asked, at_once.rows)))
            self._posterior[self._at([numbers[place] for place in asked])] = torch.cat(posteriors)
        fresh = set(asked) | {place for place in places if rows[place].draws}
        for alike in _alike([(rows[place], numbers[place]) for place in sorted(fresh)]):
            self._weigh_alike([row for row, _ in alike], [number for _, number in alike])

    def _weigh_alike(self, rows: Sequence[Row[Owner]], numbers: Sequence[int]) -> None:
        """Weigh rows of one strategy."""
        where = self._at(numbers)
        request, uniform = rows[0].request, partial(_uniform, rows, self.ensemble.device)
        choose = strategies.by_name(rows[0].strategy, request.settings.rest)
        self._weights[where] = choose(request.served(self._posterior[where]), uniform)
        self._questions = None

    def _asked(self, numbers: Sequence[int], rows: Sequence[Row[Owner]], places: Sequence[int]) -> list[int]:
        """Rows about which the router is asked: new ones, those within the band, and the undecided below."""
        below = [place for place in places if rows[place].at and rows[place].t < self._band(rows[place]).low]
        open_rows = [place for place in below if not rows[place].settled]
        if open_rows:
            where = self._at([numbers[place] for place in open_rows])
            for place, settled in zip(
                open_rows, routing.decided(self._posterior[where]).tolist(), strict=True
            ):
                rows[place].settled = settled
        within = {
            place for place in places if not rows[place].at or self._band(rows[place]).holds(rows[place].t)
        }
        return sorted(within | {place for place in open_rows if not rows[place].settled})

    def _band(self, row: Row[Owner]) -> routing.Band:
        return self.ensemble.band if row.request.settings.band else routing.Band()


def _some(whole: Tensor, where: mixture.Rows) -> Tensor:
    """Some rows of a tensor, all of them without another view."""
    return whole if isinstance(where, slice) else whole[where]


def _put(whole: Tensor, where: mixture.Rows, part: Tensor) -> Tensor:
    """A tensor with some rows replaced, all of them without copying."""
    if isinstance(where, slice):
        return part
    whole[where] = part
    return whole


def _uniform(rows: Sequence[Row[Owner]], device: torch.device, number: int) -> Tensor:
    """Uniform numbers that depend on a row's request, its number and its step alone."""
    columns = [
        [row.request.uniform([row.index], f"strategy/{row.at}/{n}") for row in rows] for n in range(number)
    ]
    return torch.stack([torch.cat(column) for column in columns], dim=1).to(device)


def _alike(rows: Sequence[tuple[Row[Owner], int]]) -> Iterable[list[tuple[Row[Owner], int]]]:
    """Rows that are weighed in the same way, together."""
    kinds: dict[object, list[tuple[Row[Owner], int]]] = {}
    for row, number in rows:
        kinds.setdefault(row.weighing, []).append((row, number))
    return kinds.values()


def _by_request(rows: Sequence[Row[Owner]]) -> dict[int, list[Row[Owner]]]:
    """Rows of one request together; a request is known by being the same one."""
    requests: dict[int, list[Row[Owner]]] = {}
    for row in rows:
        requests.setdefault(id(row.request), []).append(row)
    return requests


def _trimmed(condition: Condition) -> Condition:
    """Texts no longer than the longest: one who has left makes the others no longer wait for padding."""
    if not isinstance(condition, TextCondition):
        return condition
    length = max(1, int(condition.mask.any(0).sum()))
    return TextCondition(condition.tokens[:, :length], condition.mask[:, :length], condition.pooled)

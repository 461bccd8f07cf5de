"""From a request to samples: batch by batch, each as one integration from noise to data."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from atoll import threads
from atoll.config import SampleConfig
from atoll.flow import solver
from atoll.models.conditions import Condition, TextCondition
from atoll.sampling import memory, ways
from atoll.sampling import parts as parting
from atoll.sampling.abreast import ENOUGH, Crew, crew, followers
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.grouping import slices
from atoll.sampling.parts import Part
from atoll.sampling.request import Request, request
from atoll.sampling.roster import Roster
from atoll.sampling.samples import Samples, joined
from atoll.sampling.tally import Progress, Tally
from atoll.sampling.vocabulary import Asked, Prompts, Vocabulary
from atoll.sampling.weighing import weigher

Finished = Callable[[Sequence[int], Samples], None]
"""Called with the numbers of some samples as soon as they are done, and the samples."""


@dataclass(frozen=True)
class Sampler:
    """An ensemble with what its run says of sampling: what `atoll.load` gives.

    It keeps nothing of a request, so that several threads may sample at once.
    """

    ensemble: Ensemble
    defaults: SampleConfig = field(default_factory=SampleConfig)
    """Settings of requests that do not say otherwise."""
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    """What names of classes and prompts mean here."""

    def sample(self, num: int | None = None, **settings: Any) -> Float[Tensor, "num channels *grid"]:
        """Draw samples: a tensor in [-1, 1] for pictures; `settings` as for `request`, or `progress`."""
        return self.trace(num, **settings).x_0

    def trace(
        self,
        num: int | None = None,
        *,
        progress: Progress | None = None,
        finished: Finished | None = None,
        **settings: Any,
    ) -> Samples:
        """Draw samples and tell who made them."""
        done = []
        for indices, some in self.stream(self.request(num, **settings), progress):
            done.append((indices, some))
            if finished is not None:
                finished(indices, some)
        return joined(done)

    def request(
        self,
        num: int | None = None,
        *,
        label: Asked | None = None,
        prompt: Prompts | None = None,
        text: TextCondition | None = None,
        cluster: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        noise: Tensor | None = None,
        **settings: Any,
    ) -> Request:
        """What is asked for, validated; several labels or prompts are taken in turn.

        `settings` are those of the recipe's [sample] section, which gives the defaults. `cluster` gives each
        sample its expert for the strategy `oracle`; `seeds` gives each a seed of its own, by which it can be
        made again alone; `noise` gives each the noise that it begins with, (num, channels, *grid).
        """
        return request(
            self.ensemble,
            self.vocabulary,
            self.defaults,
            label=label,
            prompt=prompt,
            text=text,
            cluster=cluster,
            seeds=seeds,
            noise=noise,
            num=num,
            **settings,
        )

    @torch.inference_mode()
    def stream(
        self, asked: Request, progress: Progress | None = None
    ) -> Iterator[tuple[Sequence[int], Samples]]:
        """The samples of a request, batch by batch, with their numbers; only one batch is held."""
        with memory.kept(self.ensemble.device):
            yield from self._batches(asked, progress)

    def _batches(self, asked: Request, progress: Progress | None) -> Iterator[tuple[Sequence[int], Samples]]:
        strategy, certainty = parting.resolve(self.ensemble, asked)
        tally = Tally(progress, asked.settings.steps, asked.num)
        several, parts = self._followers(parting.parts(self.ensemble, asked, strategy))

        def make(pair: tuple[Part, Part | None]) -> tuple[Part, Samples]:
            part, coming = pair
            self._expect(coming)
            rows, most = len(part.indices), asked.settings.batch
            at_once = crew(self.ensemble, rows, most, several=part.expert is None)
            with (at_once if several.members == 1 else Crew(1, most, 1)).at_work() as own:
                return part, self._follow(part, asked, strategy, own, tally.of(rows))

        try:
            for part, made in several.ask(make, _with_next(parts)):
                yield part.indices, replace(made, certainty=certainty)
        finally:
            tally.end()

    def _followers(self, parts: Iterator[Part]) -> tuple[Crew, Iterator[Part]]:
        """Who follows these batches, as the first of them tell: one after the other, or several at once."""
        first = list(itertools.islice(parts, ENOUGH * threads.cores()))
        apart = all(part.expert is not None for part in first)
        sizes = [len(part.indices) for part in first] if apart else []
        return followers(self.ensemble, sizes), itertools.chain(first, parts)

    def posterior(self, x_t: Tensor, t: Tensor, condition: Condition = None) -> Tensor:
        """p(k | x_t, t, condition): how likely it is that each expert's cluster is behind x_t."""
        return self.ensemble.posterior(x_t, t, condition)

    def velocity(self, x_t: Tensor, t: Tensor, condition: Condition = None, **settings: Any) -> Tensor:
        """The velocity at x_t, for anyone who brings a solver; settings as for `Ensemble.velocity`."""
        return self.ensemble.velocity(x_t, t, condition, **settings)

    def _expect(self, coming: Part | None) -> None:
        """Have the expert of the next batch fetched while this one is made."""
        experts = self.ensemble.experts
        if coming is not None and coming.expert is not None and isinstance(experts, Roster):
            experts.expect(coming.expert)

    def _follow(
        self, part: Part, asked: Request, strategy: str, crew: Crew, report: Callable[[int], None] | None
    ) -> Samples:
        """Follow the velocity of one batch; each sample depends on (seed, index), not on its company."""
        settings, ensemble = asked.settings, self.ensemble
        begin = parting.entry(ensemble, asked)
        noise = parting.entered(ensemble, asked, part.indices, [part.expert] * len(part.indices))
        if ensemble.maps:
            return self._jump(noise, part.condition, settings, crew, report)
        weigh = weigher(ensemble, asked, strategy, part, crew)
        times = solver.asked(settings.solver, settings.steps, settings.shift, begin)
        weights, apart, clock = [], [], iter(times)
        each = settings.provenance and part.expert is None

        def velocity(state: Tensor, t: Tensor) -> Tensor:
            x_t, now = ways.point(state) if each else state, next(clock)
            guidance = settings.guidance if settings.guided[0] <= now <= settings.guided[1] else 1.0
            weighed = weigh(x_t, t, now)
            mixed = ensemble.mixed(
                weighed.weights,
                x_t,
                t,
                part.condition,
                guidance,
                weighed.questions,
                crew.ask,
                crew.rows,
                apart=each,
                rest=settings.rest == "start" and part.expert is None,
            )
            weights.append(weighed.weights)
            apart.append(mixed.disagreement)
            return ways.velocity(mixed) if each else mixed.velocity

        state = solver.integrate(
            velocity,
            ways.begun(noise, len(ensemble.experts)) if each else noise,
            settings.steps,
            solver.SOLVERS[settings.solver](),
            report,
            settings.shift,
            begin,
        )
        x_0, moved = (ways.point(state), ways.shares(ways.moved(state))) if each else (state, None)
        if settings.provenance and not each:
            moved = weights[-1]  # whoever is asked alone goes all of the way
        return Samples(x_0, torch.stack(weights), torch.stack(apart), tuple(times), strategy, None, moved)

    def _jump(
        self,
        noise: Tensor,
        condition: Condition,
        settings: SampleConfig,
        crew: Crew,
        report: Callable[[int], None] | None,
    ) -> Samples:
        """Sample by the steps of a flow map."""
        ensemble = self.ensemble

        def average(x_t: Tensor, t: Tensor, r: Tensor) -> Tensor:
            return ensemble.average(x_t, t, r, condition, slices(len(x_t), crew.rows), crew.ask)

        x_0 = solver.integrate(average, noise, settings.steps, solver.jump, report, settings.shift)
        times = tuple(solver.times(settings.steps, settings.shift)[:-1])
        size = len(times), len(noise)
        sure = torch.ones(*size, 1, device=ensemble.device)
        return Samples(x_0, sure, torch.zeros(size, device=ensemble.device), times, "ancestral", None)


def _with_next(parts: Iterator[Part]) -> Iterator[tuple[Part, Part | None]]:
    """Every part, with the one that comes after it."""
    ahead, parts = itertools.tee(parts)
    next(ahead, None)
    return itertools.zip_longest(parts, ahead)

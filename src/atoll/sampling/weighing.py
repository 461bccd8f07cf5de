"""The weights of the experts along the way of one batch, and whom they send which rows."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.flow import mixture
from atoll.models import conditions
from atoll.sampling import routing, strategies
from atoll.sampling.abreast import Crew
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.grouping import Bundle, Group, everyone, groups, slices
from atoll.sampling.parts import Part
from atoll.sampling.request import Request


class Weighed(NamedTuple):
    """Weights of one step, and who is asked about which rows by them."""

    weights: Float[Tensor, "batch experts"]
    questions: list[Bundle]


Weigh = Callable[[Tensor, Tensor, float], Weighed]
"""Weights from x_t and t, which is told as a number as well; for one batch, from 1 to 0."""


def weigher(ensemble: Ensemble, request: Request, strategy: str, part: Part, crew: Crew) -> Weigh:
    """How a batch weighs the experts: once and for all, or by the router as the strategy says.

    Nobody is asked about more rows than a member of the crew takes on.
    """
    if part.expert is not None:
        return _fixed(ensemble, part.expert, len(part.indices), crew.rows)
    return _routed(ensemble, request, strategy, part, crew)


def _fixed(ensemble: Ensemble, expert: int, size: int, most: int) -> Weigh:
    """All weight on one expert at every step: nothing is left to find out on the way."""
    experts = torch.full((size,), expert, device=ensemble.device)
    questions = ensemble.bundles(everyone(expert, size, most), size, most)
    known = Weighed(mixture.one_hot(experts, len(ensemble.experts)), questions)
    return lambda x_t, t, now: known


def _routed(ensemble: Ensemble, request: Request, strategy: str, part: Part, crew: Crew) -> Weigh:
    """Weights by the router; as long as it says the same, nothing is weighed or grouped again."""
    settings = request.settings
    choose, steps = strategies.by_name(strategy, settings.rest), itertools.count()
    posterior = routing.in_band(
        _in_batches(ensemble, part, crew), ensemble.band if settings.band else routing.Band()
    )
    rows = torch.arange(len(part.indices), device=ensemble.device)
    drawn = strategy.startswith(("sample", "nucleus"))
    everybody = _everybody(ensemble, request, len(rows), crew.rows) if strategy == "full" else None
    last: tuple[Tensor, Weighed] | None = None

    def weigh(x_t: Tensor, t: Tensor, now: float) -> Weighed:
        nonlocal last
        purpose = f"strategy/{next(steps)}"
        p = posterior(x_t, t, rows, now)
        if last is None or last[0] is not p or drawn:
            uniform = partial(_uniform, request, part.indices, purpose, ensemble.device)
            weights = choose(request.served(p), uniform)
            some = groups(weights, crew.rows) if everybody is None else everybody
            last = p, Weighed(weights, ensemble.bundles(some, len(rows), crew.rows))
        return last[1]

    return weigh


def _everybody(ensemble: Ensemble, request: Request, size: int, most: int) -> list[Group]:
    """All who serve, asked about everything: whom to ask is known without the weights."""
    serving = request.settings.experts or range(len(ensemble.experts))
    return [group for expert in sorted(set(serving)) for group in everyone(expert, size, most)]


def _in_batches(ensemble: Ensemble, part: Part, crew: Crew) -> routing.Posterior:
    """The posterior of some rows of a part, at most so many at once."""

    def posterior(x_t: Tensor, t: Tensor, rows: Tensor) -> Tensor:
        def some(where: slice) -> Tensor:
            return ensemble.posterior(x_t[where], t[where], conditions.take(part.condition, rows[where]))

        return torch.cat(list(crew.ask(some, slices(len(rows), crew.rows))))

    return posterior


def _uniform(
    request: Request, indices: Sequence[int], purpose: str, device: torch.device, number: int
) -> Float[Tensor, "batch number"]:
    """Uniform numbers that depend on (seed, index) and the step alone."""
    columns = [request.uniform(indices, f"{purpose}/{n}") for n in range(number)]
    return torch.stack(columns, dim=1).to(device)

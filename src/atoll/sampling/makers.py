"""Which parts made a finished sample: how likely it is under each, and whom the router would ask."""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atoll.credit import likelihood, shares
from atoll.credit.likelihood import Calibration
from atoll.flow import draws, path
from atoll.models import conditions
from atoll.models.conditions import Condition
from atoll.sampling.ensemble import Ensemble

SENTENCE = (
    "This tells which parts would make such a sample, not whose work is in it: a likelihood is a "
    "resemblance, and the nearest training samples are the nearest, not the ones it was made from."
)
UNFAIR = (
    " Likelihoods are as experts say them and were not calibrated by samples of known makers "
    "(`atoll credit RUN` does, unless credit.calibration is 0). A part that is worse at "
    "everything is named too rarely."
)


Velocity = Callable[[Tensor, Tensor, Condition], Tensor]
"""A velocity at x_t and t, given what is told."""
TRAINED = 3.0
"""Logits of the times at which a sample is looked at lie in ± this, where experts were trained: it holds 99.7
of 100 logit-normal times, 90 of 100 uniform ones. What they say of less noise than they ever saw is luck, and
would outweigh the rest: with ± 6 seven of ten makers are named, with anything from ± 2 to ± 4 all are."""


@dataclass(frozen=True)
class Makers:
    """What can be said of samples that were given, each row one of them."""

    posterior: Tensor
    """(num, experts): p(expert | sample) by likelihood."""
    bits: Tensor
    """(num, experts): bits per value more than under the likeliest expert; infinite for one that is gone."""
    t: Tensor
    """(levels,): the times of `weights`, from data to noise."""
    weights: Tensor
    """(levels, num, experts): the router's p(expert | x_t) where the sample is noised to x_t."""
    display: Tensor | None = None
    """(num, experts): what each says beyond a base along what all say, as shares; None without a base."""
    nll: Tensor | None = None
    """(num, experts): as experts say it, in nats; only differences mean anything."""
    calibrated: bool = False
    """Whether what experts are worse by at everything was taken off."""

    def facts(self, row: int) -> dict[str, Any]:
        """One sample as JSON."""
        chosen = self.posterior[row]
        return {
            "expert": int(chosen.argmax()),
            "calibrated": self.calibrated,
            "posterior": _rounded(chosen),
            "bits_per_value_worse": [
                bits if math.isfinite(bits) else None for bits in _rounded(self.bits[row])
            ],
            "times": _rounded(self.t),
            "weights": [_rounded(at) for at in self.weights[:, row]],
            "display": None if self.display is None else _rounded(self.display[row]),
            "sentence": SENTENCE if self.calibrated else SENTENCE + UNFAIR,
        }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


Look = Generator[tuple[int, int], None, Makers]
"""Tells after each question how many answers there are, and of how many; ends with what they say."""


def makers(
    ensemble: Ensemble,
    x_0: Tensor,
    *,
    levels: int,
    batch: int,
    seed: int = 0,
    condition: Condition = None,
    base: Velocity | None = None,
    calibration: Calibration | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Makers:
    """Look at samples at many noise levels, all experts at the same noises (Kingma et al. 2021, eq. 15).

    How likely a sample is with the least of these noises on it. At guidance 1. Each sample's noises
    depend on (seed, its number) alone. With a `calibration` an expert that is worse at everything is not
    held to be the maker of nothing.
    """
    look = looking(
        ensemble,
        x_0,
        levels=levels,
        batch=batch,
        seed=seed,
        condition=condition,
        base=base,
        calibration=calibration,
    )
    while True:
        count, made = advanced(look)
        if made is not None:
            return made
        if progress is not None and count is not None:
            progress(*count)


def advanced(look: Look) -> tuple[tuple[int, int] | None, Makers | None]:
    """One question more: how far it is, or what all of them say."""
    try:
        return next(look), None
    except StopIteration as end:
        return None, end.value


@torch.inference_mode()
def looking(
    ensemble: Ensemble,
    x_0: Tensor,
    *,
    levels: int,
    batch: int,
    seed: int = 0,
    condition: Condition = None,
    base: Velocity | None = None,
    calibration: Calibration | None = None,
) -> Look:
    """The same, one question at a time, so that others get their turn between two of them.

    Levels of all samples are asked about together, `batch` rows at once, and each expert once about them.
    Parts that are gone made nothing.
    """
    there = [k for k in range(len(ensemble.experts)) if k not in ensemble.absent]
    t = likelihood.times(levels, torch.rand(levels, generator=draws.generator(seed, "levels")), TRAINED)
    asked, count = ensemble.told(condition, len(x_0)), len(ensemble.experts)
    pairs = [(level, row) for row in range(len(x_0)) for level in range(levels)]
    errors, weights = torch.full((len(pairs), count), torch.inf), torch.empty(len(pairs), count)
    display = torch.zeros(len(pairs), count)
    for start in range(0, len(pairs), max(1, batch)):
        some = pairs[start : start + max(1, batch)]
        own = slice(start, start + len(some))
        x_t, times, target, own_condition = _noised(ensemble, x_0, some, t, seed, asked)
        weights[own] = _weights(ensemble, x_t, times, own_condition, there).cpu()
        answers = torch.zeros(count if base is not None else 0, *x_t.shape, device=x_t.device)
        ground = None if base is None else base(x_t, times, own_condition).float()
        for place, k in enumerate(there):
            velocity = ensemble.experts[k](x_t, times, own_condition).float()
            errors[own, k] = (velocity - target).square().flatten(1).sum(1).cpu()
            if ground is not None:
                answers[k] = velocity - ground
            if ground is not None and k == there[-1]:
                display[own] = shares.display_credit(weights[own].to(x_t.device), answers).cpu()
            yield len(there) * start + (place + 1) * len(some), len(there) * len(pairs)
    errors, weights = (rows.view(len(x_0), levels, count).transpose(0, 1) for rows in (errors, weights))
    nll = likelihood.negative_log_likelihood(errors, t, TRAINED)
    fair = nll if calibration is None else calibration.applied(nll)
    softened = 1.0 if calibration is None else calibration.temperature
    made = Makers(
        likelihood.posterior(fair, ensemble.priors.cpu(), softened),
        likelihood.bits_per_value(fair, x_0[0].numel()),
        t,
        weights,
        nll=nll,
        calibrated=calibration is not None,
    )
    if base is None:
        return made
    along = display.view(len(x_0), levels, count).sum(1)
    return replace(made, display=along / along.sum(1, keepdim=True).clamp(min=1e-38))


def _noised(
    ensemble: Ensemble, x_0: Tensor, pairs: Sequence[tuple[int, int]], t: Tensor, seed: int, asked: Condition
) -> tuple[Tensor, Tensor, Tensor, Condition]:
    """Samples at levels: the noisy ones, their times, what experts should say, and what they are told."""
    device = ensemble.device
    level, row = (torch.tensor(numbers) for numbers in zip(*pairs, strict=True))
    data, times = x_0[row].to(device), t[level].to(device)
    noise = torch.stack([_noise(seed, *pair, x_0.shape[1:]) for pair in pairs]).to(device)
    condition = conditions.take(asked, row.to(device))
    return path.point(data, noise, times), times, path.velocity(data, noise), condition


def _noise(seed: int, level: int, row: int, shape: Sequence[int]) -> Tensor:
    """The noise of one sample at one level, its own."""
    return torch.randn(*shape, generator=draws.generator(seed, f"makers/{level}", row))


def _weights(
    ensemble: Ensemble, x_t: Tensor, t: Tensor, condition: Condition, there: Sequence[int]
) -> Tensor:
    """What the router says of those who are there, without one the prior; the others' is shared out."""
    whole = ensemble.priors.expand(len(x_t), -1)
    if ensemble.router is not None:
        whole = ensemble.posterior(x_t, t, condition)
    weights = torch.zeros_like(whole)
    weights[:, there] = whole[:, there]
    return weights / weights.sum(1, keepdim=True)

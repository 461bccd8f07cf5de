"""Which parts made a finished sample: how likely it is under each, and whom the router would ask."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll.credit import likelihood
from atoll.flow import draws, path
from atoll.models import conditions
from atoll.models.conditions import Condition
from atoll.sampling.ensemble import Ensemble

SENTENCE = (
    "This tells which parts would make such a sample, not whose work is in it: a likelihood is a "
    "resemblance, and the nearest training samples are the nearest, not the ones it was made from."
)


@dataclass(frozen=True)
class Makers:
    """What can be said of samples that were given, each row one of them."""

    posterior: Tensor
    """(num, experts): p(expert | sample) by likelihood."""
    bits: Tensor
    """(num, experts): bits per value more than under the likeliest expert."""
    t: Tensor
    """(levels,): the times of `weights`, from data to noise."""
    weights: Tensor
    """(levels, num, experts): the router's p(expert | x_t) where the sample is noised to x_t."""

    def facts(self, row: int) -> dict[str, Any]:
        """One sample as JSON."""
        chosen = self.posterior[row]
        return {
            "expert": int(chosen.argmax()),
            "posterior": _rounded(chosen),
            "bits_per_value_worse": _rounded(self.bits[row]),
            "times": _rounded(self.t),
            "weights": [_rounded(at) for at in self.weights[:, row]],
        }


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


@torch.inference_mode()
def makers(
    ensemble: Ensemble,
    x_0: Tensor,
    *,
    levels: int,
    batch: int,
    seed: int = 0,
    condition: Condition = None,
    progress: Callable[[int, int], None] | None = None,
) -> Makers:
    """Look at samples at many noise levels, all experts at the same noises (Kingma et al. 2021, eq. 15).

    At guidance 1. Each sample's noises depend on (seed, its number) alone.
    """
    uniform = torch.rand(levels, generator=draws.generator(seed, "levels"))
    t = likelihood.times(levels, uniform)
    asked = ensemble.told(condition, len(x_0))
    nll, weights = [], []
    for start in range(0, len(x_0), max(1, batch)):
        some = range(start, min(start + batch, len(x_0)))
        errors, routed = _errors(ensemble, x_0, some, t, seed, asked)
        if progress is not None:
            progress(levels * some.stop, levels * len(x_0))
        nll.append(likelihood.negative_log_likelihood(errors, t))
        weights.append(routed)
    total = torch.cat(nll)
    posterior = likelihood.posterior(total, ensemble.priors.cpu())
    return Makers(posterior, likelihood.bits_per_value(total, x_0[0].numel()), t, torch.cat(weights, 1))


def _errors(
    ensemble: Ensemble, x_0: Tensor, some: range, t: Tensor, seed: int, asked: Condition
) -> tuple[Tensor, Tensor]:
    """Squared errors (levels, num, experts) of some samples, and the router's weights there."""
    device, count = ensemble.device, len(ensemble.experts)
    rows = torch.tensor(list(some), device=device)
    data, condition = x_0[some.start : some.stop].to(device), conditions.take(asked, rows)
    errors, weights = [], []
    for level, now in enumerate(t.tolist()):
        noise = _noise(seed, level, some, data.shape[1:]).to(device)
        times = torch.full((len(data),), now, device=device)
        x_t, target = path.point(data, noise, times), path.velocity(data, noise)
        apart = [ensemble.experts[k](x_t, times, condition).float() - target for k in range(count)]
        errors.append(torch.stack([one.square().flatten(1).sum(1) for one in apart], 1).cpu())
        weights.append(_weights(ensemble, x_t, times, condition).cpu())
    return torch.stack(errors), torch.stack(weights)


def _noise(seed: int, level: int, rows: range, shape: Sequence[int]) -> Tensor:
    """The noise of samples at one level, each its own."""
    each = [draws.generator(seed, f"makers/{level}", row) for row in rows]
    return torch.stack([torch.randn(*shape, generator=source) for source in each])


def _weights(ensemble: Ensemble, x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
    """What the router says; without one, the prior."""
    if ensemble.router is None:
        return ensemble.priors.expand(len(x_t), -1)
    return ensemble.posterior(x_t, t, condition)

"""Where samples enter the networks' flow: at noise, or later, where two moments of a cluster tell as much.

Down to that time noise flows in closed form, as the Gaussian of its cluster does: no network is asked and no
step is made. All steps are left for what the networks know.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.config import SampleConfig
from atoll.errors import RunError
from atoll.flow import gaussian
from atoll.models import conditions, entry
from atoll.models.conditions import Condition
from atoll.models.entry import Entry
from atoll.runs import Stage


@dataclass(frozen=True)
class Entering:
    """The moments of every expert's samples, and from which time on they tell as much as the experts."""

    t: float
    known: dict[int, Entry]
    """By expert, on the ensemble's device."""

    def at(self, settings: SampleConfig) -> float:
        """The time at which the samples of a request enter."""
        return self.t if settings.entry == "auto" else float(settings.entry)

    def points(
        self,
        noise: Float[Tensor, "batch *sample"],
        experts: Sequence[int],
        t: float,
        condition: Condition = None,
    ) -> Float[Tensor, "batch *sample"]:
        """Where noise has flowed to by t; each row belongs to the cluster of an expert."""
        points = torch.empty_like(noise)
        for expert in sorted(set(experts)):
            rows = [row for row, owner in enumerate(experts) if owner == expert]
            where = slice(None) if len(rows) == len(experts) else _moved(rows, noise.device)
            moments = self.known[expert].told(conditions.take(condition, where))
            times = torch.full((len(rows),), t, device=noise.device, dtype=noise.dtype)
            points[where] = gaussian.flowed(moments, noise[where], times)
        return points


def of_parts(
    experts: Sequence[Stage],
    priors: Sequence[float],
    absent: frozenset[int],
    device: torch.device,
) -> Entering | None:
    """What all experts that may be asked carry with them; None if one of them carries nothing.

    What the whole ensemble leaves is the mean of what each leaves of its own samples, by their shares.
    """
    entries: dict[int, Entry] = {}
    for number, stage in enumerate(experts):
        if number in absent:
            continue
        if not stage.done or entry.FILE not in stage.record.files:
            return None
        entries[number] = entry.read(stage.verify(entry.FILE), device)
    times = {tuple(each.times.tolist()) for each in entries.values()}
    if len(times) != 1:
        return None  # measured otherwise, by another version: nothing can be said of all of them
    errors = torch.stack([priors[number] * each.errors.double() for number, each in entries.items()]).sum(0)
    begin = gaussian.known_from(times.pop(), *errors)
    return Entering(begin, entries)


def moments(expert: Stage, device: torch.device) -> Entry:
    """Those of one expert that takes the place of another among experts that have some."""
    if entry.FILE not in expert.record.files:
        raise RunError(
            f"{expert.path} has no moments of its samples, by which those of the others here enter; "
            "train it with expert.entry = true, or open the run anew"
        )
    return entry.read(expert.verify(entry.FILE), device)


def _moved(rows: list[int], device: torch.device) -> Tensor:
    return torch.tensor(rows).to(device, non_blocking=True)

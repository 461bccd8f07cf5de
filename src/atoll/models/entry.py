"""What an expert's samples are by two moments, and how well these and the expert itself tell them from noise.

It lies beside the weights. Where the moments tell as much as the network does, samples need not ask it: they
enter its flow below that time, from the closed form (`flow/gaussian.py`).
"""

from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.errors import CorruptError
from atoll.flow.gaussian import Gaussian
from atoll.models import checkpoint
from atoll.models.conditions import Condition

FILE = "entry.safetensors"
"""Beside the weights."""
NAMES = (*Gaussian._fields, "times", "errors")
SHIFTS = "shifts"
"""Of experts that are told a class."""


class Entry(NamedTuple):
    """Moments of an expert's samples, and what is left of their velocity at some times by whom."""

    known: Gaussian
    times: Float[Tensor, " some"]
    """Where it was measured; they rise."""
    errors: Float[Tensor, "two some"]
    """Mean squares: of the expert, and of the moments alone."""
    shifts: Float[Tensor, "classes_and_none *sample"] | None = None
    """Of the mean, for samples that are told a class."""

    def told(self, condition: Condition) -> Gaussian:
        """The moments of samples that are told something: each has a mean of its own."""
        if self.shifts is None:
            return self.known
        assert isinstance(condition, Tensor)
        return self.known._replace(mean=self.known.mean + self.shifts[condition])


def write(path: Path, entry: Entry) -> None:
    """Keep it."""
    tensors = {**entry.known._asdict(), "times": entry.times, "errors": entry.errors}
    if entry.shifts is not None:
        tensors[SHIFTS] = entry.shifts
    checkpoint.write_tensors(path, {name: value.cpu().contiguous() for name, value in tensors.items()})


def read(path: Path, device: torch.device) -> Entry:
    """What lies beside an expert, its moments on a device."""
    tensors = checkpoint.read_tensors(path)
    if tensors.keys() - {SHIFTS} != set(NAMES) or not all(
        value.isfinite().all() for value in tensors.values()
    ):
        raise CorruptError(
            f"{path} is not what was measured of an expert; delete its folder and train it again"
        )
    known, shifts = Gaussian(*(tensors[name] for name in Gaussian._fields)), tensors.get(SHIFTS)
    fits = known.basis.shape == (len(known.variances), *known.mean.shape)
    fits &= shifts is None or shifts.shape[1:] == known.mean.shape
    if not fits or tensors["errors"].shape != (2, len(tensors["times"])):
        raise CorruptError(f"{path} is damaged; delete its folder and train it again")
    known = Gaussian(*(value.to(device) for value in known))
    return Entry(known, tensors["times"], tensors["errors"], None if shifts is None else shifts.to(device))

"""How sure a number is: bootstrap intervals, and intervals over repetitions."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll.flow import draws

NORMAL = 1.96
"""Standard errors on either side of a value that hold the truth 95 times in 100."""


class Measured(NamedTuple):
    """A number, the interval that holds it 95 times in 100, and on how many samples it stands."""

    value: float
    low: float
    high: float
    num: int

    def facts(self) -> dict[str, Any]:
        """As JSON, where a number that cannot be had is null."""
        return {
            name: number if math.isfinite(number) else None
            for name, number in zip(self._fields, self, strict=True)
        }


Statistic = Callable[[Tensor], float]
"""A number of the rows with these indices."""


def bootstrap(num: int, statistic: Statistic, resamples: int, seed: int = 0) -> Measured:
    """The statistic of all rows, with 1.96 standard errors of resampled ones (Efron 1979).

    Not percentiles: in a resample rows repeat, so that distances of resamples are larger throughout.
    """
    value = statistic(torch.arange(num))
    source = draws.generator(seed, "bootstrap")
    again = [statistic(torch.randint(num, (num,), generator=source)) for _ in range(resamples)]
    error = float(torch.tensor(again, dtype=torch.float64).std()) if resamples > 1 else math.nan
    return Measured(value, value - NORMAL * error, value + NORMAL * error, num)


def mean_of_rows(rows: Tensor, resamples: int, seed: int = 0) -> Measured:
    """The mean of a number of each row; a share of rows lies between 0 and 1, and so does its interval."""
    share = rows.dtype == torch.bool
    rows = rows.double().cpu()
    measured = bootstrap(len(rows), lambda chosen: float(rows[chosen].mean()), resamples, seed)
    return measured._replace(low=max(measured.low, 0.0), high=min(measured.high, 1.0)) if share else measured


STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t at 97.5 % for 1 to 9 degrees of freedom."""


def over_repetitions(values: Sequence[float]) -> Measured:
    """Mean of independent repetitions, as of seeds, with Student's interval; no interval for a single one."""
    tensor = torch.tensor(values, dtype=torch.float64)
    mean, num = float(tensor.mean()), len(values)
    if num < 2:
        return Measured(mean, math.nan, math.nan, num)
    half = STUDENT[num - 2] if num - 2 < len(STUDENT) else NORMAL
    half *= float(tensor.std()) / math.sqrt(num)
    return Measured(mean, mean - half, mean + half, num)


def ratio(above: Mapping[str, Any], below: Mapping[str, Any]) -> Measured:
    """One measured number over another that was found apart from it: their relative errors add as squares."""
    value = above["value"] / below["value"]
    if above["low"] is None or below["low"] is None:
        return Measured(value, math.nan, math.nan, above["num"])
    half = value * math.hypot(*((each["high"] - each["value"]) / each["value"] for each in (above, below)))
    return Measured(value, value - half, value + half, above["num"])

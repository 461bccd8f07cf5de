"""Strategies by name: which experts a sample asks at each step, and with what weight."""

import re
from collections.abc import Callable

from torch import Tensor

from atoll.config import STRATEGIES, STRATEGY
from atoll.errors import ConfigError
from atoll.flow import mixture

Uniform = Callable[[int], Tensor]
"""Gives so many uniform numbers per sample, (batch, draws), new at every step."""
Strategy = Callable[[Tensor, Uniform], Tensor]
"""Weights of the experts from the posterior, both (batch, experts)."""


def by_name(name: str, rest: str = "experts") -> Strategy:
    """The strategy of this name; `ancestral` and `auto` are not functions of the posterior of a step.

    Where the start has the `rest`, weights of top-K and threshold-P sum to less than one.
    """
    kind, _, number = name.partition("-")
    if kind not in ("full", "top", "threshold", "nucleus", "sample") or not re.match(STRATEGY, name):
        raise ConfigError(f"strategy {name!r} does not weigh experts step by step; use one of {STRATEGIES}")
    choose: Strategy = {
        "full": lambda posterior, uniform: mixture.full(posterior),
        "top": lambda posterior, uniform: mixture.top_k(posterior, int(number)),
        "threshold": lambda posterior, uniform: mixture.threshold(posterior, float(number)),
        # DDM's nucleus: keep the likely experts, then ask one of them
        "nucleus": lambda posterior, uniform: mixture.sample(
            mixture.nucleus(posterior, float(number)), uniform(1)
        ),
        "sample": lambda posterior, uniform: mixture.sample(posterior, uniform(int(number))),
    }[kind]
    if rest == "experts" or kind not in ("top", "threshold"):
        return choose
    return lambda posterior, uniform: mixture.with_rest(choose(posterior, uniform), posterior)

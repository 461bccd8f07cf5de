"""What a study varies: its axes by their dotted keys, and every combination of values along them."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from atoll.errors import ConfigError
from atoll.study.settings import StudyConfig

CLUSTERS, STRATEGY, SEED, BUDGET = "partition.clusters", "sample.strategy", "seed", "budget"
START, ADAPTER, GUIDANCE = "start", "adapter", "sample.guidance"
FEATURES = "encode.features"
CONDITION = "condition"
"""What a start is told, among what is different for it."""


def axes(config: StudyConfig) -> dict[str, list[Any]]:
    """The axes by their dotted keys; the budget is one as well."""
    leaves = dict(_leaves(config.axes))
    for key, values in leaves.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"study {config.name}: axes.{key} must be a list of values")
    starts = {START: list(config.budget.start)} if any(config.budget.start) else {}
    adapters = {ADAPTER: list(config.budget.adapter)} if any(config.budget.adapter) else {}
    return {BUDGET: list(config.budget.samples), **starts, **adapters, **leaves}


def points(config: StudyConfig) -> Iterable[dict[str, Any]]:
    """Every combination of values along the axes."""
    along = axes(config)
    return (dict(zip(along, values, strict=True)) for values in itertools.product(*along.values()))


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value

"""What a study cannot ask for, refused before anything is made."""

from collections.abc import Mapping
from typing import Any

from atoll.config import RunConfig, unknown_features
from atoll.errors import ConfigError
from atoll.study.axes import CLUSTERS, CONDITION, FEATURES, SEED, axes
from atoll.study.settings import StudyConfig

Base = Mapping[str, Any]
"""The recipe's tree with what is different in every cell."""


def check(config: StudyConfig, base: Base, run: RunConfig) -> None:
    """Refuse what does not fit together; `run` is the recipe with what is different in every cell."""
    _features(config, run)
    _tuning(config, base, run)
    _guidance(config, base)
    _shared(config, base)
    _told(config, base)


def _features(config: StudyConfig, run: RunConfig) -> None:
    """All that samples are to be grouped by."""
    tried = () if config.tune is None else config.tune.features
    for name in (run.encode.features, *axes(config).get(FEATURES, ()), *tried):
        if unknown := unknown_features(name):
            raise ConfigError(f"study {config.name}: {unknown}")


def _tuning(config: StudyConfig, base: Base, run: RunConfig) -> None:
    """What is tuned is said by nobody else."""
    tune = config.tune
    if tune is None:
        return
    name, along = config.name, axes(config)
    sought = [
        *(("expert.batch", "expert.lr") if tune.batch else ()),
        *((FEATURES, "partition.balanced") if tune.features else ()),
        *((CLUSTERS,) if tune.clusters else ()),
    ]
    for key in sought:
        if key in along:
            raise ConfigError(f"study {name}: [tune] finds {key}, which is an axis too; leave out one")
    if tune.seed is not None and tune.seed in along.get(SEED, [run.seed]):
        raise ConfigError(f"study {name}: tune.seed {tune.seed} is one that is reported; take another")
    if tune.batch and base.get("expert", {}).get("batch_of") == "monolith":
        raise ConfigError(f"study {name}: [tune] finds each side's batch; leave out expert.batch_of")
    if "start" in tune.features and not all(config.budget.start):
        raise ConfigError(f"study {name}: {FEATURES} 'start' needs one: give budget.start a share")
    if along.get(CLUSTERS, [run.partition.clusters])[0] == 1:
        raise ConfigError(f"study {name}: [tune] tries the first of {CLUSTERS}, which is 1; begin with more")


def _guidance(config: StudyConfig, base: Base) -> None:
    """What samples are guided away from, or experts taken farther from, must be trained."""
    name, own, along = config.name, base.get("sample", {}), axes(config)
    if all(config.budget.start):
        return
    if "start" in (own.get("against"), *along.get("sample.against", ())):
        raise ConfigError(f"study {name}: sample.against 'start' needs one: give budget.start a share")
    if any(f"sample.{key}" in along or own.get(key) for key in ("extrapolate", "extrapolations")):
        raise ConfigError(f"study {name}: sample.extrapolate needs a start: give budget.start a share")


def _shared(config: StudyConfig, base: Base) -> None:
    """A network for the low noise of all needs its share."""
    if "shared" in base and not config.budget.shared:
        name = config.name
        raise ConfigError(f"study {name}: [shared] needs a share of the budget: set budget.shared")


def _told(config: StudyConfig, base: Base) -> None:
    """A start can be told clusters that there are before it, for experts that are whole networks."""
    condition = config.start.get(CONDITION)
    if condition is None:
        return
    if condition != "cluster":
        raise ConfigError(
            f"study {config.name}: start.condition is '{condition}'; it can be 'cluster', or left out"
        )
    if any(config.budget.adapter):
        raise ConfigError(f"study {config.name}: start.condition is for whole networks, not for adapters")
    tried = () if config.tune is None else config.tune.features
    if "start" in (base.get("encode", {}).get("features"), *axes(config).get(FEATURES, ()), *tried):
        raise ConfigError(
            f"study {config.name}: start.condition needs clusters before the start, and {FEATURES} = 'start' "
            "makes them after it"
        )

"""What a recipe gets wrong about its samples, told before anything is spent."""

from collections.abc import Iterator
from dataclasses import dataclass

from atoll.config import patches
from atoll.config.network import NetworkConfig
from atoll.config.run import RunConfig
from atoll.errors import ConfigError

ENCODER = "openai/clip-vit-large-patch14"
"""A text encoder to name to somebody who has none."""


@dataclass(frozen=True)
class Facts:
    """What is known of the samples of a run; None is what is not known yet."""

    shape: tuple[int, ...] | None = None
    """(channels, *grid), as networks see a sample."""
    rows: int | None = None
    classes: int | None = None
    captions: bool | None = None
    text: int | None = None
    """Width of the states of texts, if they are at rest already, whoever encoded them."""


def check(config: RunConfig, facts: Facts) -> None:
    """Refuse what cannot work, all of it in one line."""
    wrong = list(dict.fromkeys(problems(config, facts)))
    if wrong:
        raise ConfigError("; ".join(wrong))


def problems(config: RunConfig, facts: Facts) -> Iterator[str]:
    """Everything that is wrong as far as the facts tell."""
    yield from _condition(config, facts)
    yield from _features(config)
    yield from _strategies(config)
    clusters = config.partition.clusters
    if facts.rows is not None and clusters > facts.rows:
        yield f"partition.clusters = {clusters:,}, but there are {facts.rows:,} samples: ask for fewer"
    shape = facts.shape or config.plan.shape
    if shape is not None:
        yield from _networks(config, shape)


def _condition(config: RunConfig, facts: Facts) -> Iterator[str]:
    kind = config.condition.kind
    if kind == "text" and config.encode.text is None and not facts.text:
        yield f"condition.kind is 'text', but nothing reads the captions: set encode.text, as '{ENCODER}'"
    if kind == "text" and facts.captions is False:
        yield "condition.kind is 'text', but the samples have no captions: give some, or leave it at 'none'"
    if kind == "class" and facts.classes == 0:
        yield (
            "condition.kind is 'class', but the samples have no labels: "
            "name them by data.label_field, or leave it at 'none'"
        )


def _features(config: RunConfig) -> Iterator[str]:
    if config.encode.features != "start":
        return
    if config.grouped_by_start and config.start is None and not config.inits():
        yield "encode.features is 'start', but experts begin with nothing: add [start], or use 'pixels'"
    if config.partition.like is not None:
        yield "partition.like has features of its own: leave out encode.features = 'start'"


def _strategies(config: RunConfig) -> Iterator[str]:
    """Strategies that ask for more experts than there are."""
    clusters = config.partition.clusters
    named = {"sample.strategy": (config.sample.strategy,), "evaluate.strategies": config.evaluate.strategies}
    for key, strategies in named.items():
        for strategy in strategies:
            kind, _, number = strategy.partition("-")
            if kind == "top" and int(number) > clusters:
                yield f"{key}: '{strategy}' of {clusters} experts; use 'full', or top-1 to top-{clusters}"
    for index in config.sample.experts or ():
        if not 0 <= index < clusters:
            yield f"sample.experts names {index}, but this run has experts 0 to {clusters - 1}"


def _networks(config: RunConfig, shape: tuple[int, ...]) -> Iterator[str]:
    """Patches that do not fit, and widths that have no room for positions over so many axes."""
    settings: dict[str, NetworkConfig] = {"expert": config.expert}
    settings |= {
        f"[[expert.override]] of cluster {override.clusters[0]}": config.expert_for(override.clusters[0])
        for override in config.expert.override
    }
    settings |= {"router": config.router} if config.partition.clusters > 1 else {}
    settings |= {"student": config.student} if config.student is not None else {}
    for section, network in settings.items():
        key = f"{section}.patch" if not section.startswith("[") else f"{section}: patch"
        if network.patch is not None and not patches.fits(network.patch, shape):
            yield patches.misfit(network.patch, shape, key)
        axes = 2 * (len(shape) - 1)
        if network.width % axes:
            width = f"{key.replace('patch', 'width')} = {network.width}"
            yield f"{width} must be a multiple of {axes} for positions over {axes // 2} axes"

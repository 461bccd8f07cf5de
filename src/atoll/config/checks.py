"""What a recipe gets wrong about its samples, told before anything is spent."""

from collections.abc import Iterator
from dataclasses import dataclass

from atoll.config import patches
from atoll.config.data import OWN_FEATURES, unknown_features
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
    kind: str | None = None
    """What raw samples are: image, series, video or latent."""


def check(config: RunConfig, facts: Facts) -> None:
    """Refuse what cannot work, all of it in one line."""
    wrong = list(dict.fromkeys(problems(config, facts)))
    if wrong:
        raise ConfigError("; ".join(wrong))


def problems(config: RunConfig, facts: Facts) -> Iterator[str]:
    """Everything that is wrong as far as the facts tell."""
    yield from _condition(config, facts)
    yield from _encoding(config, facts)
    yield from _clusters(config, facts)
    yield from _strategies(config)
    yield from _drawing(config)
    yield from _entry(config)
    yield from _student(config)
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


def _clusters(config: RunConfig, facts: Facts) -> Iterator[str]:
    clusters, labelled = config.partition.clusters, config.partition.method == "labels"
    if facts.rows is not None and clusters > facts.rows:
        yield f"partition.clusters = {clusters:,}, but there are {facts.rows:,} samples: ask for fewer"
    if config.partition.within == "class" and facts.classes == 0:
        yield "partition.within is 'class', but the samples have no labels: leave it out"
    if labelled and facts.classes == 0:
        yield "partition.method is 'labels', but the samples have no labels: use 'features'"
    elif labelled and facts.classes is not None and clusters > facts.classes:
        yield f"partition.method is 'labels', but there are {facts.classes} labels for {clusters} clusters"


def _encoding(config: RunConfig, facts: Facts) -> Iterator[str]:
    encode = config.encode
    if unknown := unknown_features(encode.features):
        yield f"encode.features: {unknown}"
    if facts.kind in ("series", "latent"):
        if encode.features not in OWN_FEATURES:
            yield f"encode.features '{encode.features}' sees pictures, not {facts.kind}: use 'pixels'"
        if encode.autoencoder is not None:
            yield f"encode.autoencoder is for pictures and video, not {facts.kind}: leave it out"
    if encode.features != "start":
        return
    if config.grouped_by_start and config.start is None and not config.inits():
        yield "encode.features is 'start', but experts begin with nothing: add [start], or use 'pixels'"
    if config.partition.like is not None:
        yield "partition.like has features of its own: leave out encode.features = 'start'"


def _strategies(config: RunConfig) -> Iterator[str]:
    """Strategies that ask for more experts than there are."""
    clusters, serving = config.partition.clusters, config.sample.experts
    most = clusters if serving is None else len(set(serving))
    named = {"sample.strategy": (config.sample.strategy,), "evaluate.strategies": config.evaluate.strategies}
    for key, strategies in named.items():
        for strategy in strategies:
            kind, _, number = strategy.partition("-")
            if kind == "top" and int(number) > most:
                yield f"{key}: '{strategy}' of {most} experts; use 'full', or top-1 to top-{most}"
            if strategy == "oracle":
                yield f"{key}: 'oracle' needs the cluster of every sample, which is given from Python alone"
    for index in serving or ():
        if not 0 <= index < clusters:
            yield f"sample.experts names {index}, but this run has experts 0 to {clusters - 1}"
    if config.sample.protect and (config.sample.strategy not in ("auto", "full") or most < 2):
        yield "sample.protect composes two halves of the experts: use strategy 'full', and several of them"


def _drawing(config: RunConfig) -> Iterator[str]:
    """What would be found out by drawing samples, when all is trained."""
    sample, student = config.sample, config.student
    if sample.prompts and config.condition.kind != "text":
        yield f"sample.prompts are for condition.kind = 'text', and it is '{config.condition.kind}'"
    missing = {
        "student": student is None or student.steps == 0,
        "few-step": student is None or student.few is None,
    }
    if missing.get(sample.model):
        section = {"student": "student", "few-step": "student.few"}[sample.model]
        yield f"sample.model is '{sample.model}', but the recipe trains none: add [{section}]"
    if sample.against == "start" and sample.model == "ensemble" and not _share_a_start(config):
        yield "sample.against 'start' needs experts that share a start: add [start], or set expert.init"
    if sample.rest == "start" and sample.against != "start":
        yield "sample.rest 'start' asks the start that guidance moves away from; set sample.against = 'start'"
    if sample.untold and (sample.against != "start" or config.condition.kind == "none"):
        yield "sample.untold is of a start that could be told more: set against = 'start' and a condition"
    if sample.untold and sample.rest == "start":
        yield "sample.rest 'start' asks the start what experts are asked: leave out sample.untold"
    if sample.guidances and config.condition.kind == "none" and sample.against != "start":
        yield "sample.guidances without a condition are away from a start: set sample.against = 'start'"
    if (sample.extrapolate != 1 or sample.extrapolations) and not all(_begins(config)):
        yield "sample.extrapolate needs what every expert began with: add [start], or set expert.init"
    if sample.model == "few-step" and sample.guidance != 1:
        yield "a few-step student cannot be guided afterwards: set student.guidance, not sample.guidance"


def _entry(config: RunConfig) -> Iterator[str]:
    """What two moments of samples cannot stand for."""
    experts = [config.expert_for(index) for index in range(config.partition.clusters)]
    asked = any(expert.entry for expert in experts)
    if asked and config.condition.kind == "text":
        yield "expert.entry is of samples that are told nothing or a class: leave it out, or the text"
    if any(expert.entry and expert.adapter is not None for expert in experts):
        yield "expert.entry is measured of whole networks: leave it out, or expert.adapter"
    if config.sample.entry not in ("auto", 1) and not asked and config.sample.model == "ensemble":
        yield "sample.entry needs two moments of every expert's samples: set expert.entry = true"


def _student(config: RunConfig) -> Iterator[str]:
    """What would be found out by a student, when all of its teachers are trained."""
    student = config.student
    if student is None:
        return
    experts = [config.expert_for(index) for index in range(config.partition.clusters)]
    asked: dict[str, str] = {"student.init": student.init} if student.steps else {}
    if student.few is not None:
        asked["student.few.init"] = student.few.init
    for key, init in asked.items():
        if init in ("start", "average") and not _share_a_start(config):
            yield f"{key} '{init}' needs experts that share a start: add [start], or set expert.init"
        like = {"start": [config.expert], "average": experts, "expert": experts}.get(init, [])
        equal = [_shape_of(one) == _shape_of(student) for one in like]
        if equal and not (any(equal) if init == "expert" else all(equal)):
            yield f"{key} '{init}' needs a student with the network of the experts: leave out its sizes"
    if student.data == "drawn" and config.condition.kind == "text" and not config.sample.prompts:
        yield "student.data 'drawn' from experts with captions needs prompts: set sample.prompts"


def _share_a_start(config: RunConfig) -> bool:
    """Whether all experts begin with the same network."""
    starts = {config.expert_for(index).begins for index in range(config.partition.clusters)}
    return config.start is not None or (len(starts) == 1 and None not in starts)


def _begins(config: RunConfig) -> list[bool]:
    """Whether each expert begins with a network."""
    experts = map(config.expert_for, range(config.partition.clusters))
    return [config.start is not None or expert.begins is not None for expert in experts]


def _shape_of(network: NetworkConfig) -> dict[str, object]:
    """What decides which weights a network has; how a size is named does not."""
    return {key: getattr(network, key) for key in NetworkConfig.model_fields if key != "size"}


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

"""The edges of the graph: which stages each stage reads, by name, and which a recipe asks for."""

from atoll.config import RunConfig
from atoll.runs import inputs


def each(name: str, config: RunConfig) -> list[str]:
    """The stages of this kind of all clusters."""
    return [f"{name} {index}" for index in range(config.partition.clusters)]


def each_cluster(config: RunConfig) -> int:
    """How many there are of what every cluster has."""
    return config.partition.clusters


def clusters(config: RunConfig, index: int) -> list[str]:
    """All samples."""
    return each("cluster", config)


def of_start(config: RunConfig, index: int) -> list[str]:
    """All samples, in clusters or before there are any."""
    return ["pool"] if config.pooled else clusters(config, index)


def of_features(config: RunConfig, index: int) -> list[str]:
    """All samples, and the network that sees them."""
    return ["data", *_beginning(config, "start")]


def of_partition(config: RunConfig, index: int) -> list[str]:
    """All samples, and what they are grouped by if that does not lie with them."""
    return ["data", *(["features"] if config.grouped_by_start else [])]


def of_expert(config: RunConfig, index: int) -> list[str]:
    """Its own cluster, and what it begins with."""
    if config.start is not None:
        return [f"cluster {index}", "start"]
    folder = config.expert_for(index).begins
    return [f"cluster {index}", *([] if folder is None else [f"init {config.inits().index(folder)}"])]


def of_shared(config: RunConfig, index: int) -> list[str]:
    """All samples, and what it begins with."""
    return [*of_start(config, index), *_beginning(config, "start")]


def shared(config: RunConfig) -> list[str]:
    """The network for the low noise of all clusters, if there is one: no expert is whole without."""
    return ["shared"] if config.shared is not None else []


def bases(config: RunConfig) -> list[str]:
    """The networks that adapters belong to: nobody can ask an adapter without."""
    settings = (config.expert_for(index) for index in range(config.partition.clusters))
    adapters = [one for one in settings if one.adapter is not None]
    names = (
        "start" if one.begins is None else f"init {config.inits().index(one.begins)}" for one in adapters
    )
    return list(dict.fromkeys(names))


def of_drawn(config: RunConfig, index: int) -> list[str]:
    """Its expert, with the network that it is an adapter of."""
    adapts = config.expert_for(index).adapter is not None
    base = [name for name in of_expert(config, index)[1:] if adapts]
    return [f"expert {index}", *base, *shared(config)]


def of_student(config: RunConfig, index: int) -> list[str]:
    """All experts and what stands for their samples, and the router if it is asked."""
    settings = inputs.student_settings(config)
    samples = each("cluster" if settings.data == "clusters" else "drawn", config)
    return list(dict.fromkeys([*_ensemble(config), *samples, *_beginning(config, settings.init)]))


def of_few(config: RunConfig, index: int) -> list[str]:
    """What the dense student reads, and that one itself."""
    settings = inputs.few_settings(config)
    student = ["student"] if dense(config) else []
    begun = _beginning(config, getattr(settings, "init", ""))
    return list(dict.fromkeys([*of_student(config, index), *begun, *student]))


def of_guidance(config: RunConfig, index: int) -> list[str]:
    """The networks that draw, and the samples that theirs are compared with."""
    return [*_ensemble(config), "partition", *clusters(config, index)]


def of_samples(config: RunConfig, index: int) -> list[str]:
    """The networks that draw, and how far they are guided where that was chosen."""
    if config.sample.model != "ensemble":
        return [config.sample.model]
    return [*_ensemble(config), *(["guidance"] if config.sample.chooses else [])]


def of_report(config: RunConfig, index: int) -> list[str]:
    """All that is shown."""
    measured = ["evaluation"] if evaluated(config) else []
    return ["samples", *_networks(config), *measured]


def of_evaluation(config: RunConfig, index: int) -> list[str]:
    """All networks, all samples, and what says to which cluster each belongs."""
    routing = clusters(config, index) if config.evaluate.routing and routed(config) else []
    return [*_networks(config), "data", "partition", *routing]


def _networks(config: RunConfig) -> list[str]:
    """The ensemble and what was distilled from it."""
    students = [name for name, wanted in (("student", dense), ("few-step", few)) if wanted(config)]
    return [*_ensemble(config), *students]


def _ensemble(config: RunConfig) -> list[str]:
    """All that an ensemble asks, with what it is guided away from."""
    routers = ["router"] if routed(config) else []
    asked = (*each("expert", config), *routers, *bases(config), *shared(config), *weak(config))
    return list(dict.fromkeys(asked))


def weak(config: RunConfig) -> list[str]:
    """What experts began with, if samples are guided away from it, or experts are taken farther from it."""
    if not (config.sample.extrapolate != 1 or config.sample.extrapolations):
        return _beginning(config, config.sample.against)
    return ["start"] if config.start is not None else [f"init {n}" for n in range(len(config.inits()))]


def _beginning(config: RunConfig, init: str) -> list[str]:
    """What all experts begin with, if that is what is meant."""
    if init != "start":
        return []
    return ["start"] if config.start is not None else ["init 0"] if config.inits() else []


def evaluated(config: RunConfig) -> bool:
    """Whether the recipe asks for measurements as a part of the run."""
    return config.evaluate.at_end


def routed(config: RunConfig) -> bool:
    """Whether there is anything to choose."""
    return config.partition.clusters > 1


def dense(config: RunConfig) -> bool:
    """Whether the recipe asks for a dense student."""
    return config.student is not None and config.student.steps > 0


def few(config: RunConfig) -> bool:
    """Whether the recipe asks for a few-step student."""
    return config.student is not None and config.student.few is not None


def drawn(config: RunConfig) -> bool:
    """Whether experts draw samples in place of their clusters'."""
    return config.student is not None and config.student.data == "drawn"

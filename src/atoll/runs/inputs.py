"""What each stage is made from: digests of the stages that it reads and of settings that it depends on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll.config import NetworkConfig, RunConfig, StudentConfig, TrainConfig, settings_digest
from atoll.errors import ConfigError, DataError
from atoll.runs.files import digest, file_digest
from atoll.runs.foreign import foreign, is_here
from atoll.runs.records import PartitionContents
from atoll.runs.run import Run
from atoll.runs.stage import Stage


def trained_from(run: Run, settings: TrainConfig, clusters: Sequence[Stage]) -> dict[str, Any]:
    """What any training is made from, but for what it begins with and who teaches it."""
    return {
        "seed": run.config.seed,
        "settings": settings_digest(settings),
        "condition": settings_digest(run.config.condition),
        "data": digest([cluster.digest for cluster in clusters]),
    }


def pool_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What all samples together are made from."""
    inputs: dict[str, Any] = {"data": run.data.digest}
    if run.config.data.holdout:
        inputs["holdout"] = run.config.data.holdout
    return inputs


def features_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the features are made from that a network of ours gives."""
    begins = beginning(run, 0)
    if begins is None:
        raise ConfigError(
            "encode.features is 'start', but experts begin with nothing; "
            "add [start] or expert.init, or use 'pixels'"
        )
    return {"data": run.data.digest, "start": begins.digest, "seed": run.config.seed}


def partition_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the partition is made from."""
    config = run.config.partition
    inputs: dict[str, Any] = {
        "partition": settings_digest(config),
        "seed": run.config.seed,
        **pool_from(run),
    }
    if run.config.grouped_by_start:
        inputs["features"] = run.features.digest
    if config.file is not None:
        path = Path(config.file).expanduser()
        if not path.is_file():
            raise DataError(f"partition.file '{config.file}' is not there; correct the name")
        inputs["file"] = file_digest(path)
    if config.like is not None:
        inputs["like"] = like_stage(config.like).digest
    return inputs


def like_stage(folder: str) -> Stage[PartitionContents]:
    """The finished partition of another run."""
    stage = Stage(Path(folder).expanduser() / "partition", PartitionContents)
    if not stage.done:
        raise DataError(
            f"partition.like '{folder}' holds no finished partition; name a finished run's folder"
        )
    return stage


def expert_from(run: Run, index: int) -> dict[str, Any]:
    """What an expert is made from."""
    settings = run.expert_settings(index)
    inputs = trained_from(run, settings, [run.cluster(index)])
    begins = beginning(run, index)
    if begins is not None:
        inputs["init"] = begins.digest
    return inputs


def start_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the network on all data is made from."""
    made_from = trained_from(run, run.config.start_settings(), start_clusters(run))
    return {**made_from, "told": "cluster"} if start_is_told(run.config) else made_from


def start_is_told(config: RunConfig) -> bool:
    """Whether the start is told clusters by number; of one there is nothing to tell."""
    return config.start is not None and config.start.condition == "cluster" and config.partition.clusters > 1


def shared_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the network for the low noise of all clusters is made from."""
    inputs = trained_from(run, run.config.shared_settings(), start_clusters(run))
    begins = beginning(run, 0)
    if begins is not None:
        inputs["init"] = begins.digest
    return inputs


def start_clusters(run: Run) -> list[Stage]:
    """The samples that the start is trained on: those of all clusters, or of none yet."""
    if run.config.pooled:
        return [run.pool]
    return [run.cluster(index) for index in range(run.config.partition.clusters)]


def beginning(run: Run, index: int) -> Stage | None:
    """What an expert begins with, if not with nothing: the run's start, or an expert from elsewhere."""
    if run.config.start is not None:
        return run.start
    folder = run.config.expert_for(index).begins
    if folder is None:
        return None
    adopted = run.stage("init", f"{run.config.inits().index(folder):02d}")
    return adopted if adopted.done else foreign(folder)


def init_from(run: Run, index: int) -> dict[str, Any]:
    """What an expert from elsewhere is; where it is not here, what was adopted of it counts."""
    address, adopted = run.config.inits()[index], run.stage("init", f"{index:02d}")
    known = adopted if adopted.done and not is_here(address) else foreign(address)
    return {"init": known.digest}


def router_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the router is made from."""
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    return trained_from(run, run.config.router, clusters)


def guidance_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the choice of a guidance is made from: who draws, what is compared with, what is asked."""
    experts, begins = range(run.config.partition.clusters), beginning(run, 0)
    return {
        "seed": run.config.seed,
        "sample": settings_digest(run.config.sample, _choice(run.config)),
        "experts": digest([run.expert(k).digest for k in experts]),
        "start": None if begins is None else begins.digest,
        "data": digest([run.cluster(k).digest for k in experts]),
        **_shared(run),
    }


def _choice(config: RunConfig) -> tuple[str, ...]:
    """The settings of what is chosen; those of extrapolation where there is any, as before there was."""
    farther = ("extrapolate", "extrapolations", "guidance") if config.sample.extrapolations else ()
    return ("guidances", "guided", "against", "untold", *farther)


def drawn_from(run: Run, index: int) -> dict[str, Any]:
    """What the samples that an expert draws are made from."""
    sample, share = run.config.sample, run.partition.contents.priors[index]
    return {
        "seed": run.config.seed,
        "rows": max(1, round(student_settings(run.config).drawn * share)),
        "expert": run.expert(index).digest,
        "sample": settings_digest(sample, ("steps", "solver", "shift", "prompts")),
        "condition": settings_digest(run.config.condition, ("kind",)),
        **_shared(run),
    }


def student_settings(config: RunConfig) -> StudentConfig:
    """What the recipe says of its student."""
    if config.student is None:
        raise ConfigError("the recipe has no [student]; add the section, even if nothing is in it")
    return config.student


def lesson_clusters(run: Run, indices: Sequence[int] | None = None) -> list[Stage]:
    """The samples that students learn at: the clusters, or what their experts draw in their place."""
    own = run.cluster if student_settings(run.config).data == "clusters" else run.drawn
    return [
        own(index) for index in (indices if indices is not None else range(run.config.partition.clusters))
    ]


def taught_from(run: Run, teacher: str, indices: Sequence[int] | None = None) -> dict[str, Any]:
    """Which experts teach, and by which router."""
    indices = range(run.config.partition.clusters) if indices is None else indices
    inputs = {"experts": digest([run.expert(index).digest for index in indices])}
    if teacher != "label" and run.config.partition.clusters > 1:
        inputs["router"] = run.router.digest
    return {**inputs, **_shared(run)}


def _shared(run: Run) -> dict[str, Any]:
    """The network that has the low noise of all experts, where there is one."""
    return {} if run.config.shared is None else {"shared": run.shared.digest}


def lessons_from(run: Run, indices: Sequence[int] | None = None) -> dict[str, Any]:
    """What a dense student is made from, or the part of it that is made from some clusters."""
    config = student_settings(run.config)
    inputs = trained_from(run, config, lesson_clusters(run, indices))
    return {**inputs, "init": config.init, **taught_from(run, config.teacher, indices)}


def student_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the dense student is made from, by rounds or at once."""
    inputs, config = lessons_from(run), student_settings(run.config)
    if config.sites is not None:
        inputs["sites"] = sites_from(run)
    return inputs


def sites_from(run: Run) -> dict[str, Any]:
    """What is asked of the sites, and the clusters of each, whether they were named or not."""
    sites = student_settings(run.config).sites
    assert sites is not None
    return {"settings": settings_digest(sites), "clusters": site_clusters(run.config)}


def begun_from(run: Run) -> dict[str, Any]:
    """What the weights are made from that all sites begin with."""
    config = student_settings(run.config)
    return {
        "seed": run.config.seed,
        "init": config.init,
        "network": settings_digest(config, NetworkConfig.model_fields),
        "sites": sites_from(run),
    }


def site_clusters(config: RunConfig) -> list[list[int]]:
    """The clusters of each site that distils by rounds."""
    sites = student_settings(config).sites
    named = None if sites is None else sites.clusters
    if named is None:
        return [[index] for index in range(config.partition.clusters)]
    return [list(group) for group in named]


def few_step_from(run: Run, index: int = 0) -> dict[str, Any]:
    """What the few-step student is made from."""
    config = student_settings(run.config)
    few = config.few
    assert few is not None
    inputs = {
        **trained_from(run, few, lesson_clusters(run)),
        "network": settings_digest(config, NetworkConfig.model_fields),
        "guidance": settings_digest(config, ("guidance", "guided")),
        "init": few.init,
    }
    if config.steps:
        inputs["student"] = run.student.digest
    if few.teacher != "student" or not config.steps or few.init != "student":
        teacher = few.teacher if few.teacher != "student" else "label"
        inputs |= taught_from(run, teacher if config.steps else "ensemble")
    return inputs


def few_settings(config: RunConfig) -> TrainConfig:
    """What the recipe says of the few-step student, by its last lesson."""
    few = student_settings(config).few
    assert few is not None
    return few if few.steps else few.model_copy(update={"steps": few.trajectories})

"""The one model distilled from all experts: what teaches it, what it starts from, and its loss."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from atoll import devices
from atoll.config import OF_ONE_MODEL, ExpertConfig, NetworkConfig, StudentConfig, Teacher, TrainConfig
from atoll.data.store import Batch, Reader
from atoll.errors import ConfigError
from atoll.flow import draws, maps, path
from atoll.models import checkpoint
from atoll.runs import Run, Stage, inputs
from atoll.runs.records import Alone, StudentContents
from atoll.sampling import bases, building
from atoll.train import holdout, jobs, loop
from atoll.train.moving import on_cpu
from atoll.train.ranks import Ranks
from atoll.train.teaching import Lesson, Teachers

NAME = "student"


def dense(run: Run) -> Stage:
    """Train the dense student on all clusters."""
    clusters = inputs.lesson_clusters(run)
    build = partial(_task, run, run.student, clusters, settings(run))
    describe = partial(alone, run, run.student, {})
    return jobs.trained(run.student, inputs.student_from(run), build, StudentContents, measure=describe)


def alone(
    run: Run, stage: Stage, sampling: dict[str, Any], blueprint: checkpoint.Blueprint
) -> dict[str, Any]:
    """What a student says of itself: the run of one expert that it is, by which it is sampled and judged.

    `sampling` is how it is sampled where that is not as the recipe says.
    """
    config, own, about = run.config, settings(run), run.partition.contents
    network = {key: getattr(own, key) for key in NetworkConfig.model_fields}
    training = {key: getattr(own, key) for key in TrainConfig.model_fields}
    sample: dict[str, Any] = {"model": "ensemble", "experts": None, **OF_ONE_MODEL, **sampling}
    together = {"clusters": 1, "method": "random", "file": None, "like": None}
    one = config.model_copy(
        update={
            "name": f"{config.name}-{stage.path.name}",
            "partition": config.partition.model_copy(update=together),
            "expert": ExpertConfig.model_validate({**network, **training, "steps": max(1, own.steps)}),
            "sample": config.sample.model_copy(update=sample),
            "shared": None,
            "student": None,
        }
    )
    whole = {"clusters": 1, "sizes": (sum(about.sizes),), "priors": (1.0,)}
    unknown = dict.fromkeys(("digests", "margins", "nmi", "labels"))
    contents = about.model_copy(update={**whole, **unknown})
    own_run = Alone(config=one.model_dump(mode="json"), samples=contents)
    return {"taught_by": config.partition.clusters, "alone": own_run}


def settings(run: Run) -> StudentConfig:
    """What the recipe says of its student."""
    return inputs.student_settings(run.config)


def _task(
    run: Run, stage: Stage, clusters: list[Stage], config: StudentConfig, ranks: Ranks
) -> tuple[loop.Task, checkpoint.Blueprint]:
    reader = Reader(clusters, config.batch, run.config.seed)
    blueprint = jobs.blueprint_of(run, config, reader)
    model = first_network(run, blueprint, config.init)
    teachers = teachers_of(run, config.teacher, blueprint)
    task = loop.Task(
        name=NAME,
        model=model,
        loss=dense_loss(blueprint, teachers),
        reader=reader,
        config=config,
        seed=run.config.seed,
        dropout=dropout(run, blueprint),
        stage=stage,
        ranks=ranks,
        run=run,
        held_out=holdout.read(clusters, reader.shape),
        preview=jobs.preview_of(blueprint, reader),
    )
    return task, blueprint


def dropout(run: Run, blueprint: checkpoint.Blueprint) -> float:
    """How often the condition is hidden; never where guidance is baked in, since nobody will guide again."""
    hidden = blueprint.condition != "none" and settings(run).guidance == 1
    return run.config.condition.dropout if hidden else 0.0


def dense_loss(blueprint: checkpoint.Blueprint, teachers: Teachers) -> loop.Loss:
    """Regress the teacher's velocity at noisy samples."""

    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        lesson = lesson_of(blueprint, batch, drawn)
        target = teachers.velocity(lesson)
        predicted = model(lesson.x_t, lesson.t, lesson.condition)
        return maps.distillation_loss(predicted.float(), target.float())

    return loss


def lesson_of(blueprint: checkpoint.Blueprint, batch: Batch, drawn: draws.TrainingDraws) -> Lesson:
    """Noisy samples of a batch, with what is known of them."""
    x_t = path.point(batch.x_0, drawn.noise, drawn.t)
    condition = jobs.told_of(blueprint, batch, drawn)
    known = {"host_t": on_cpu(drawn).t, "host_cluster": batch.cluster_on_cpu}
    return Lesson(x_t, drawn.t, condition, batch.cluster, drawn.uniform, **known)


def teachers_of(
    run: Run, who: Teacher, blueprint: checkpoint.Blueprint, indices: Sequence[int] | None = None
) -> Teachers:
    """The run's experts as teachers; of those that are named, the files are checked before anything else."""
    config, device = settings(run), devices.best()
    clusters = range(run.config.partition.clusters)
    for index in clusters if indices is None else indices:
        _check_teacher(run.expert(index), blueprint)
    first = 0 if indices is None else indices[0]
    router = run.router if who != "label" and len(clusters) > 1 else None
    experts = [run.expert(index) for index in clusters]
    shared = None if run.config.shared is None else run.shared
    parts = building.Parts(
        experts, priors(run, first), router, first=first, bases=bases.of_run(run), shared=shared
    )
    ensemble = building.build(parts, device, config.resident)
    return Teachers(ensemble, who, config.guidance, config.guided)


def priors(run: Run, index: int = 0) -> list[float]:
    """The share of each cluster in all samples, as one of them says, or the partition without them."""
    cluster = run.cluster(index)
    return list(cluster.contents.priors if cluster.done else run.partition.contents.priors)


def _check_teacher(stage: Stage, blueprint: checkpoint.Blueprint) -> None:
    stage.verify(checkpoint.WEIGHTS)
    teacher = checkpoint.read_blueprint(stage.verify(checkpoint.CONFIG))
    keys = ("shape", "condition", "classes", "text")
    differ = [key for key in keys if getattr(teacher, key) != getattr(blueprint, key)]
    if differ:
        raise ConfigError(f"{stage.path} cannot teach: it has another {', '.join(differ)} than the recipe")


def first_network(run: Run, blueprint: checkpoint.Blueprint, init: str, name: str = NAME) -> nn.Module:
    """A network with the weights that training starts from."""
    network = jobs.initial(blueprint, run.config.seed, name)
    if init == "scratch":
        return network
    if init == "start":
        return with_weights(network, expert_weights(run, _common_start(run), blueprint))
    shares = priors(run)
    chosen = range(len(shares)) if init == "average" else [shares.index(max(shares))]
    if init == "average":
        _require_common_start([run.expert(index) for index in chosen])
    total = sum(shares[index] for index in chosen)
    mean: dict[str, Tensor] = {}
    for index in chosen:
        for key, value in expert_weights(run, run.expert(index), blueprint).items():
            part = value.double() * (shares[index] / total)
            mean[key] = mean[key] + part if key in mean else part
    return with_weights(network, {key: value.float() for key, value in mean.items()})


def with_weights(network: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """The network with these weights; what only a flow map has, it keeps."""
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert all(key.startswith("trunk.step.") for key in missing), missing
    return network


def expert_weights(run: Run, stage: Stage, blueprint: checkpoint.Blueprint) -> dict[str, Tensor]:
    """The weights of an expert of the same kind as the student; an adapter's with its base."""
    weights, expert = bases.weights(stage, bases.of_run(run))
    same = blueprint.model_copy(update={"steps": expert.steps, "clusters": expert.clusters})
    if expert.model_copy(update={"network": blueprint.network}) != same:
        raise ConfigError(f"{stage.path} predicts or is told something else; set student.init to 'scratch'")
    if {**expert.network.model_dump(), "size": None} != {**blueprint.network.model_dump(), "size": None}:
        raise ConfigError(f"{stage.path} has another network; set student.init to 'scratch'")
    return weights


def _common_start(run: Run) -> Stage:
    """What all experts began with."""
    begun = inputs.beginning(run, 0)
    if begun is None:
        raise ConfigError(
            "student.init 'start' is what all experts began with: add [start], or set expert.init"
        )
    return begun


def _require_common_start(experts: list[Stage]) -> None:
    """Weights can be averaged only if they come from the same ones."""
    starts = {expert.record.made_from.get("init") for expert in experts}
    if len(starts) > 1 or None in starts:
        raise ConfigError(
            "student.init 'average' needs experts that share a start: add [start] or set expert.init, "
            "or student.init to 'scratch' or 'expert'"
        )

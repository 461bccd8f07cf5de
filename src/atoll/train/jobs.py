"""What is trained and on what: expert k on cluster k, the router on all clusters with their labels."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from atoll import devices
from atoll.config import ExpertConfig, NetworkConfig, ObjectiveConfig, RouterConfig
from atoll.data.store import Batch, Reader, sealed
from atoll.errors import ConfigError
from atoll.flow import draws, objectives, path
from atoll.models import adapt, adapter, checkpoint, conditions
from atoll.models import expert as expert_room
from atoll.models import numbered as numbers
from atoll.models.prototypes import Prototypes
from atoll.runs import Run, Stage, inputs, replacing, write_json
from atoll.runs.locks import alone
from atoll.runs.records import ExpertContents, NetworkContents, RouterContents, StartContents
from atoll.runs.shared import SharedNetworkContents
from atoll.sampling import routing
from atoll.train import entry, holdout, loop, moments, previews, prototypes
from atoll.train.moving import to_device
from atoll.train.ranks import Ranks, joined
from atoll.train.state import collected

UNNUMBERED = 0.1
"""The share of samples whose cluster a start is not told, so that it can be asked without; as of a class."""
BAND_SAMPLES = 256
"""On how many samples the router's band is measured."""


def expert(run: Run, index: int) -> Stage:
    """Train one expert on its cluster, seeing nothing else."""
    clusters = run.config.partition.clusters
    if not 0 <= index < clusters:
        raise ConfigError(f"there is no expert {index}: this run has experts 0 to {clusters - 1}")
    cluster, stage, config = run.cluster(index), run.expert(index), run.expert_settings(index)
    with sealed(cluster):
        build = partial(_task, run, stage, [cluster], config, begins=inputs.beginning(run, index))
        beside = partial(_beside, run, stage, cluster, config)
        return trained(stage, inputs.expert_from(run, index), build, ExpertContents, beside=beside)


def _beside(
    run: Run, stage: Stage, cluster: Stage, config: ExpertConfig, blueprint: checkpoint.Blueprint
) -> list[str]:
    """What is measured of a finished expert on its own samples."""
    seed = run.config.seed
    shares = moments.write(stage, cluster, blueprint, seed)
    return [*shares, *entry.write(stage, cluster, config, blueprint, seed)]


def start(run: Run) -> Stage:
    """Train the network on all data that experts begin with."""
    clusters, settings = inputs.start_clusters(run), run.config.start_settings()
    known = tuple(cluster.digest for cluster in clusters) if inputs.start_is_told(run.config) else ()
    build = partial(_task, run, run.start, clusters, settings, numbered=len(known))
    return trained(run.start, inputs.start_from(run), build, partial(StartContents, clusters=known))


def shared(run: Run) -> Stage:
    """Train the network on all data that stands in for experts where little noise is left."""
    settings, clusters = run.config.shared_settings(), inputs.start_clusters(run)
    build = partial(_task, run, run.shared, clusters, settings, begins=inputs.beginning(run, 0))
    contents = partial(SharedNetworkContents, below=settings.time_span[1])
    return trained(run.shared, inputs.shared_from(run), build, contents)


def router(run: Run) -> Stage:
    """Train the router to tell from which cluster a noisy sample comes."""
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    stage = run.router
    build = partial(_task, run, stage, clusters, run.config.router)
    band = partial(_measured_band, run, stage)
    return trained(stage, inputs.router_from(run), build, RouterContents, measure=band)


Build = Callable[[Ranks], tuple[loop.Task, checkpoint.Blueprint]]
"""What is trained, and what it is, before anything is written."""
Measure = Callable[[checkpoint.Blueprint], dict[str, Any]]
"""What is to be known of a finished network besides."""
Beside = Callable[[checkpoint.Blueprint], list[str]]
"""Writes more files beside a finished network, and says which."""


def trained(
    stage: Stage,
    made_from: dict[str, Any],
    build: Build,
    kind: Callable[..., NetworkContents],
    *,
    measure: Measure = lambda blueprint: {},
    beside: Beside = lambda blueprint: [],
) -> Stage:
    """A stage with a trained network in it, from wherever an earlier call stopped."""
    one = alone(stage.path, "trained")
    with joined() as ranks, one if ranks.first else contextlib.nullcontext():
        if ranks.from_first(lambda: stage.current(made_from)):
            return stage
        task, blueprint = build(ranks)
        ranks.from_first(lambda: stage.begin(made_from))
        state = loop.train(task, devices.best())
        averaged = collected(state.averaged(), ranks)
        weights = averaged if blueprint.adapter else {**task.model.state_dict(), **averaged}
        contents = partial(kind, steps=state.step, rows=task.reader.rows)
        ranks.from_first(lambda: publish(stage, blueprint, weights, made_from, contents, measure, beside))
    return stage


def publish(
    stage: Stage,
    blueprint: checkpoint.Blueprint,
    weights: dict[str, Tensor],
    made_from: dict[str, Any],
    contents: Callable[..., NetworkContents],
    measure: Measure = lambda blueprint: {},
    beside: Beside = lambda blueprint: [],
) -> None:
    """Write what was trained, and say that it is finished; `contents` is told what was measured of it."""
    files = [checkpoint.WEIGHTS, checkpoint.CONFIG]
    if blueprint.numbered:
        weights, shifts = numbers.settled(weights)
        blueprint = blueprint.model_copy(update={"numbered": 0})
        with replacing(stage.path / numbers.FILE) as unfinished:
            numbers.write(unfinished, shifts)
        files.append(numbers.FILE)
    with replacing(stage.path / checkpoint.WEIGHTS) as unfinished:
        checkpoint.write_tensors(unfinished, weights)
    write_json(stage.path / checkpoint.CONFIG, blueprint.model_dump(mode="json"))
    files += beside(blueprint)
    stage.finish(made_from, files, contents(**measure(blueprint)))


def _measured_band(run: Run, stage: Stage, blueprint: checkpoint.Blueprint) -> dict[str, Any]:
    """Between which times the finished router decides, on a few hundred samples."""
    device = devices.best()
    router, _ = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG, device)
    clusters = [run.cluster(index) for index in range(blueprint.clusters)]
    with contextlib.closing(Reader(clusters, BAND_SAMPLES, run.config.seed).batches()) as batches:
        batch = to_device(next(batches), slice(None), device)
    drawn = draws.training_draws(run.config.seed, "router/band", 0, batch.x_0.shape, 0.0)
    condition = told_of(blueprint, batch, drawn._replace(dropped=drawn.dropped.to(device)))
    band = routing.measure_band(router, batch.x_0, drawn.noise.to(device), condition)
    return {"band": (band.low, band.high)}


def _task(
    run: Run,
    stage: Stage,
    clusters: list[Stage],
    config: ExpertConfig | RouterConfig,
    ranks: Ranks,
    begins: Stage | None = None,
    numbered: int = 0,
) -> tuple[loop.Task, checkpoint.Blueprint]:
    """What is trained, before anything is written: a mistake in the recipe shows here."""
    reader = Reader(clusters, config.batch, run.config.seed)
    name = f"expert-{stage.path.name}" if isinstance(config, ExpertConfig) else "router"
    blueprint = blueprint_of(run, config, reader).model_copy(update={"numbered": numbered})
    if isinstance(config, ExpertConfig):
        own = clusters[0].digest if len(clusters) == 1 else ""
        model, blueprint = _first(run, config, blueprint, name, begins, own)
        loss = _expert_loss(blueprint, config)
    else:
        model, blueprint = _new_router(run, config, blueprint, clusters)
        loss = router_loss(blueprint)
    task = loop.Task(
        name=name,
        model=model,
        loss=loss,
        reader=reader,
        config=config,
        seed=run.config.seed,
        dropout=run.config.condition.dropout if blueprint.condition != "none" else 0.0,
        stage=stage,
        ranks=ranks,
        run=run,
        held_out=holdout.read(clusters, reader.shape),
        preview=preview_of(blueprint, reader) if _draws_alone(config) else None,
    )
    return task, blueprint


def _new_router(
    run: Run, config: RouterConfig, blueprint: checkpoint.Blueprint, clusters: list[Stage]
) -> tuple[nn.Module, checkpoint.Blueprint]:
    """A router before its first step: it knows nothing, or what prototypes of the clusters say."""
    if not config.prototypes:
        return initial(blueprint, run.config.seed, "router"), blueprint
    priors = run.partition.contents.priors
    known = prototypes.of_clusters(clusters, priors, blueprint.classes, config.prototypes, run.config.seed)
    return with_prototypes(blueprint, known, run.config.seed, "router")


def with_prototypes(
    blueprint: checkpoint.Blueprint, known: Prototypes, seed: int, name: str
) -> tuple[nn.Module, checkpoint.Blueprint]:
    """A new router that says what these prototypes do."""
    blueprint = blueprint.model_copy(update={"prototypes": len(known.means)})
    model = initial(blueprint, seed, name)
    model.get_submodule("prototypes").load_state_dict(known.state_dict())
    return model, blueprint


def _draws_alone(config: ExpertConfig | RouterConfig) -> bool:
    """Whether a network can be drawn from by itself: an expert's, at all times."""
    return isinstance(config, ExpertConfig) and config.time_span == (0.0, 1.0)


def _first(
    run: Run,
    config: ExpertConfig,
    blueprint: checkpoint.Blueprint,
    name: str,
    begins: Stage | None,
    cluster: str = "",
) -> tuple[nn.Module, checkpoint.Blueprint]:
    """An expert before its first step: new, as what it begins with, or a new adapter of that.

    What it begins with is told its cluster, whose digest is given, if that is one that it was taught.
    """
    if begins is None:
        return initial(blueprint, run.config.seed, name), blueprint
    weights, described = begins.verify(checkpoint.WEIGHTS), begins.verify(checkpoint.CONFIG)
    if config.adapter is None:
        fresh = initial(blueprint, run.config.seed, name)
        network, blueprint = adapt.start(weights, described, blueprint, config.convert, fresh)
        taught: Sequence[str] = getattr(begins.contents, "clusters", ())
        if cluster in taught and numbers.FILE in begins.record.files:
            numbers.tell(network, begins.verify(numbers.FILE), taught.index(cluster))
        return network, blueprint
    with seeded(run.config.seed, name):
        exact = config.convert == "exact"
        sha256 = begins.record.files[checkpoint.WEIGHTS]
        return adapter.begin(weights, described, blueprint, config.adapter, sha256, exact=exact)


def untrained(run: Run, index: int) -> tuple[nn.Module, loop.Loss]:
    """An expert before its first step, and its loss: for whoever measures states of it."""
    config, stage = run.expert_settings(index), run.expert(index)
    blueprint = blueprint_of(run, config, Reader([run.cluster(index)], 1, run.config.seed))
    name = f"expert-{stage.path.name}"
    own = run.cluster(index).digest
    model, blueprint = _first(run, config, blueprint, name, inputs.beginning(run, index), own)
    return model, _expert_loss(blueprint, config)


def preview_of(blueprint: checkpoint.Blueprint, reader: Reader) -> previews.Preview:
    """How to draw from a network in training: what it is told is what the first samples at rest are told."""
    condition = None
    if blueprint.condition != "none":
        first = reader.first(previews.COUNT)
        again = torch.arange(previews.COUNT) % len(first.x_0)
        batch = to_device(first, again, torch.device("cpu"))
        drawn = draws.training_draws(previews.SEED, "preview", 0, batch.x_0.shape, 0.0)
        condition = told_of(blueprint, batch, drawn)
    return previews.Preview(blueprint.objective, reader.contents, condition)


def blueprint_of(run: Run, config: NetworkConfig, reader: Reader) -> checkpoint.Blueprint:
    """What is built for these samples by these settings: an expert, a router, or an expert's kin."""
    kind = run.config.condition.kind
    if kind == "class" and not reader.classes:
        raise ConfigError("condition.kind is 'class' but the samples have no labels; use 'none'")
    about = reader.contents.text
    if kind == "text" and not about:
        raise ConfigError("condition.kind is 'text' but the samples have no text states; set encode.text")
    if isinstance(config, RouterConfig) and config.blind:
        kind = "none"
    settings = {key: getattr(config, key) for key in NetworkConfig.model_fields}
    network = NetworkConfig.model_validate({**settings, "patch": config.patch_of(reader.shape)})
    keys = ObjectiveConfig.model_fields if isinstance(config, ExpertConfig) else ()
    objective = checkpoint.Objective.model_validate({key: getattr(config, key) for key in keys})
    return checkpoint.Blueprint(
        role="router" if isinstance(config, RouterConfig) else "expert",
        network=network,
        shape=tuple(reader.shape),
        condition=kind,
        classes=reader.classes if kind == "class" else 0,
        text=about.width if kind == "text" and about else 0,
        clusters=run.config.partition.clusters,
        objective=objective,
    )


def initial(blueprint: checkpoint.Blueprint, seed: int, name: str) -> nn.Module:
    """A network whose first weights are a function of (seed, job)."""
    with seeded(seed, name):
        return blueprint.build()


@contextlib.contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """Meanwhile torch draws first weights as a function of (seed, job)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draws.generator(seed, f"{name}/weights").initial_seed())
        yield


def _expert_loss(blueprint: checkpoint.Blueprint, config: ExpertConfig) -> loop.Loss:
    """The natural loss of the recipe's objective; of the velocity where the network's own is converted."""
    along = path.PATHS[config.path]
    own = blueprint.objective
    converted = (own.path, own.prediction, own.rounded) != (config.path, config.prediction, False)

    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        time = drawn.t * along.last
        x = along.point(batch.x_0, drawn.noise, time)
        condition = told_of(blueprint, batch, drawn)
        # Where it is converted, the recipe's objective is the velocity on the linear path.
        if converted:
            predicted = expert_room.velocity(model, own, x, time, condition)
        else:
            number = {"cluster": _number(blueprint, batch, drawn)} if blueprint.numbered else {}
            predicted = model(x, time, condition, **number)
        alpha, sigma = along.coefficients(time)
        return objectives.loss(
            config.prediction, config.weighting, alpha, sigma, predicted.float(), batch.x_0, drawn.noise
        )

    return loss


def _number(blueprint: checkpoint.Blueprint, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
    """The number of each sample's cluster, for some the one that tells nothing."""
    return torch.where(drawn.uniform < UNNUMBERED, blueprint.numbered, batch.cluster)


def router_loss(
    blueprint: checkpoint.Blueprint, numbers: Sequence[int] = (), oversampled: Tensor | None = None
) -> loop.Loss:
    """From which cluster a noisy sample comes.

    `numbers` are those of the clusters in the order of the answers, if they are not 0, 1, 2, …; `oversampled`
    the log of how much more of each is read than its share of all samples.
    """
    places = {number: place for place, number in enumerate(numbers)}

    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        x_t = path.point(batch.x_0, drawn.noise, drawn.t)
        logits = model(x_t, drawn.t, told_of(blueprint, batch, drawn)).float()
        owner = batch.cluster
        if places:
            own = [places[number] for number in batch.cluster_on_cpu.tolist()]
            owner = torch.tensor(own).to(owner.device, non_blocking=True)
        if oversampled is not None:
            logits = logits + oversampled.to(logits.device, non_blocking=True)
        return objectives.router_loss(logits, owner)

    return loss


def told_of(
    blueprint: checkpoint.Blueprint, batch: Batch, drawn: draws.TrainingDraws
) -> conditions.Condition:
    """The condition of each sample, hidden for some."""
    if blueprint.condition == "class":
        assert batch.label is not None
        return conditions.hide(batch.label, drawn.dropped | (batch.label < 0), blueprint.classes)
    if blueprint.condition == "text":
        assert batch.text is not None
        text = conditions.TextCondition(batch.text.tokens, batch.text.mask, batch.text.pooled)
        return conditions.hide(text, drawn.dropped, 0)
    return None

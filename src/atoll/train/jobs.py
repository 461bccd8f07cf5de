"""What is trained and on what: expert k on cluster k, the router on all clusters with their labels."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from atoll.config import ExpertConfig, NetworkConfig, RouterConfig
from atoll.data.store import Batch, Reader, sealed
from atoll.errors import ConfigError, RunError
from atoll.flow import draws, objectives, path
from atoll.models import adapt, checkpoint, conditions
from atoll.models import expert as expert_room
from atoll.runs import Run, Stage, digest, file_digest, replacing, write_json
from atoll.train import loop


def best_device() -> torch.device:
    """The fastest device of this machine."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def expert(run: Run, index: int, *, start_over: bool = False) -> Stage:
    """Train one expert on its cluster, seeing nothing else."""
    clusters = run.config.partition.clusters
    if not 0 <= index < clusters:
        raise ConfigError(f"there is no expert {index}: this run has experts 0 to {clusters - 1}")
    cluster = run.cluster(index)
    with sealed(cluster):
        config = run.config.expert_for(index)
        return _train(run, f"expert-{index:02d}", [cluster], run.expert(index), config, start_over)


def router(run: Run, *, start_over: bool = False) -> Stage:
    """Train the router to tell from which cluster a noisy sample comes."""
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    return _train(run, "router", clusters, run.router, run.config.router, start_over)


def _train(
    run: Run,
    name: str,
    clusters: list[Stage],
    stage: Stage,
    config: ExpertConfig | RouterConfig,
    start_over: bool,
) -> Stage:
    condition = run.config.condition
    made_from = {
        "seed": run.config.seed,
        "settings": digest(config.model_dump(mode="json", exclude={"init", "override"})),
        "condition": digest(condition.model_dump(mode="json")),
        "data": digest([cluster.digest for cluster in clusters]),
    }
    if isinstance(config, ExpertConfig) and config.init is not None:
        made_from["init"] = file_digest(_init_weights(config.init))
    with _alone(stage.path):
        if not stage.begin(made_from, start_over):
            return stage
        reader = Reader(clusters, config.batch, run.config.seed)
        blueprint = _blueprint(run, name, config, reader)
        model = _initial(blueprint, run.config.seed, name)
        if isinstance(config, ExpertConfig):
            if config.init is not None:
                model, blueprint = adapt.start(Path(config.init), blueprint, config.convert, model)
            loss = _expert_loss(blueprint, config)
        else:
            loss = _router_loss(blueprint)
        task = loop.Task(
            name=name,
            model=model,
            loss=loss,
            reader=reader,
            config=config,
            seed=run.config.seed,
            dropout=condition.dropout if blueprint.classes else 0.0,
            stage=stage,
        )
        state = loop.train(task, best_device())
        with replacing(stage.path / checkpoint.WEIGHTS) as beside:
            checkpoint.write_tensors(beside, {**model.state_dict(), **state.averaged()})
        write_json(stage.path / checkpoint.CONFIG, blueprint.model_dump(mode="json"))
        stage.finish(
            made_from, [checkpoint.WEIGHTS, checkpoint.CONFIG], {"steps": state.step, "rows": reader.rows}
        )
    return stage


def _blueprint(run: Run, name: str, config: NetworkConfig, reader: Reader) -> checkpoint.Blueprint:
    kind = run.config.condition.kind
    if kind == "class" and not reader.classes:
        raise ConfigError("condition.kind is 'class' but the samples have no labels; use 'none'")
    network = NetworkConfig.model_validate({key: getattr(config, key) for key in NetworkConfig.model_fields})
    objective = checkpoint.Objective()
    if isinstance(config, ExpertConfig):
        objective = checkpoint.Objective(path=config.path, prediction=config.prediction)
    return checkpoint.Blueprint(
        role="router" if name == "router" else "expert",
        network=network,
        shape=tuple(reader.shape),
        condition=kind,
        classes=reader.classes if kind == "class" else 0,
        clusters=run.config.partition.clusters,
        objective=objective,
    )


def _init_weights(folder: str) -> Path:
    weights = Path(folder) / checkpoint.WEIGHTS
    if not weights.is_file():
        raise ConfigError(f"expert.init '{folder}' holds no expert; give a folder that `atoll import` made")
    return weights


def _initial(blueprint: checkpoint.Blueprint, seed: int, name: str) -> nn.Module:
    """A network whose first weights are a function of (seed, job)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draws.generator(seed, f"{name}/weights").initial_seed())
        return blueprint.build()


def _expert_loss(blueprint: checkpoint.Blueprint, config: ExpertConfig) -> loop.Loss:
    """The natural loss of the recipe's objective; of the velocity where the network's own is converted."""
    along = path.PATHS[config.path]
    own = blueprint.objective
    converted = (own.path, own.prediction, own.rounded) != (config.path, config.prediction, False)

    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        time = drawn.t * along.last
        x = along.point(batch.x_0, drawn.noise, time)
        told = _told(blueprint, batch, drawn)
        # Where it is converted, the recipe's objective is the velocity on the linear path.
        predicted = expert_room.velocity(model, own, x, time, told) if converted else model(x, time, told)
        alpha, sigma = along.coefficients(time)
        return objectives.loss(
            config.prediction, config.weighting, alpha, sigma, predicted.float(), batch.x_0, drawn.noise
        )

    return loss


def _router_loss(blueprint: checkpoint.Blueprint) -> loop.Loss:
    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        x_t = path.point(batch.x_0, drawn.noise, drawn.t)
        logits = model(x_t, drawn.t, _told(blueprint, batch, drawn))
        return objectives.router_loss(logits.float(), batch.cluster)

    return loss


def _told(blueprint: checkpoint.Blueprint, batch: Batch, drawn: draws.TrainingDraws) -> conditions.Condition:
    """The condition of each sample, hidden for some."""
    if blueprint.condition != "class":
        return None
    return conditions.hide(batch.label, drawn.dropped, blueprint.classes)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second process from training the same thing; the lock goes with the process, however it ends."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder} is being trained by another process; wait for it or stop it") from None
        yield

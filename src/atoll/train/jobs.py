"""What is trained and on what: expert k on cluster k, the router on all clusters with their labels."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atoll.config import NetworkConfig, RouterConfig
from atoll.data.store import Batch, Reader, sealed
from atoll.errors import ConfigError, RunError
from atoll.flow import draws, objectives, path
from atoll.models import checkpoint, conditions
from atoll.runs import Run, Stage, replacing, write_json
from atoll.train import hardware, loop
from atoll.train import island as islands


def expert(run: Run, index: int, *, start_over: bool = False) -> Stage:
    """Train one expert on its cluster, seeing nothing else."""
    clusters = run.config.partition.clusters
    if not 0 <= index < clusters:
        raise ConfigError(f"there is no expert {index}: this run has experts 0 to {clusters - 1}")
    cluster = run.cluster(index)
    with sealed(cluster):
        return _train(
            run, f"expert-{index:02d}", [cluster], run.expert(index), run.expert_inputs(index), start_over
        )


def router(run: Run, *, start_over: bool = False) -> Stage:
    """Train the router to tell from which cluster a noisy sample comes."""
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    return _train(run, "router", clusters, run.router, run.router_inputs(), start_over)


def _train(
    run: Run,
    name: str,
    clusters: list[Stage],
    stage: Stage,
    made_from: dict[str, Any],
    start_over: bool,
) -> Stage:
    config = run.config.router if name == "router" else run.config.expert_for(int(name[-2:]))
    with islands.joined() as island, _alone(stage.path) if island.first else contextlib.nullcontext():
        if not island.from_first(lambda: stage.begin(made_from, start_over)):
            return stage
        reader = Reader(clusters, config.batch, run.config.seed)
        blueprint = _blueprint(run, name, config, reader)
        task = loop.Task(
            name=name,
            model=_initial(blueprint, run.config.seed, name),
            loss=_router_loss(blueprint) if name == "router" else _expert_loss(blueprint),
            reader=reader,
            config=config,
            seed=run.config.seed,
            dropout=run.config.condition.dropout if blueprint.condition != "none" else 0.0,
            stage=stage,
            island=island,
        )
        state = loop.train(task, hardware.best_device())
        averaged = state.averaged()
        island.from_first(lambda: _publish(stage, blueprint, averaged))
        contents = {"steps": state.step, "rows": reader.rows}
        files = [checkpoint.WEIGHTS, checkpoint.CONFIG]
        island.from_first(lambda: stage.finish(made_from, files, contents))
    return stage


def _publish(stage: Stage, blueprint: checkpoint.Blueprint, averaged: dict[str, Tensor]) -> None:
    with replacing(stage.path / checkpoint.WEIGHTS) as beside:
        checkpoint.write_tensors(beside, averaged)
    write_json(stage.path / checkpoint.CONFIG, blueprint.model_dump(mode="json"))


def _blueprint(run: Run, name: str, config: NetworkConfig, reader: Reader) -> checkpoint.Blueprint:
    kind = run.config.condition.kind
    if kind == "class" and not reader.classes:
        raise ConfigError("condition.kind is 'class' but the samples have no labels; use 'none'")
    about = reader.contents.get("text")
    if kind == "text" and not about:
        raise ConfigError("condition.kind is 'text' but the samples have no text states; set encode.text")
    if isinstance(config, RouterConfig) and config.blind:
        kind = "none"
    network = NetworkConfig.model_validate({key: getattr(config, key) for key in NetworkConfig.model_fields})
    return checkpoint.Blueprint(
        role="router" if name == "router" else "expert",
        network=network,
        shape=tuple(reader.shape),
        condition=kind,
        classes=reader.classes if kind == "class" else 0,
        text=about["width"] if kind == "text" and about else 0,
        clusters=run.config.partition.clusters,
    )


def _initial(blueprint: checkpoint.Blueprint, seed: int, name: str) -> nn.Module:
    """A network whose first weights are a function of (seed, job)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draws.generator(seed, f"{name}/weights").initial_seed())
        return blueprint.build()


def _expert_loss(blueprint: checkpoint.Blueprint) -> loop.Loss:
    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        x_t = path.point(batch.x_0, drawn.noise, drawn.t)
        predicted = model(x_t, drawn.t, _told(blueprint, batch, drawn))
        return objectives.velocity_loss(predicted.float(), batch.x_0, drawn.noise)

    return loss


def _router_loss(blueprint: checkpoint.Blueprint) -> loop.Loss:
    def loss(model: nn.Module, batch: Batch, drawn: draws.TrainingDraws) -> Tensor:
        x_t = path.point(batch.x_0, drawn.noise, drawn.t)
        logits = model(x_t, drawn.t, _told(blueprint, batch, drawn))
        return objectives.router_loss(logits.float(), batch.cluster)

    return loss


def _told(blueprint: checkpoint.Blueprint, batch: Batch, drawn: draws.TrainingDraws) -> conditions.Condition:
    """The condition of each sample, hidden for some."""
    if blueprint.condition == "class":
        assert batch.label is not None
        return conditions.hide(batch.label, drawn.dropped | (batch.label < 0), blueprint.classes)
    if blueprint.condition == "text":
        assert batch.text is not None
        text = conditions.TextCondition(batch.text.tokens, batch.text.mask, batch.text.pooled)
        return conditions.hide(text, drawn.dropped, 0)
    return None


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

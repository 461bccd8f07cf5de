"""A component from data that stays at home: trained here, described by means of many samples, and no more."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from atoll.components import calibrating, checking, rows
from atoll.config import NetworkConfig, ObjectiveConfig, RunConfig, validate
from atoll.credit import signature
from atoll.data import encode, partition
from atoll.data.parts import Parts
from atoll.data.store import Reader
from atoll.errors import ConfigError, DataError
from atoll.models import checkpoint
from atoll.runs import Run, Stage, replacing, rights, write_json
from atoll.runs.adopt import adopt
from atoll.runs.components import DRAWN, ROWS, SIGNATURE, ComponentContents
from atoll.runs.records import DataContents, PartitionContents, SamplesContents, StageRecord
from atoll.sampling import grown
from atoll.train import jobs, prototypes

Progress = Callable[[str, int, int], None]


def private_config(config: RunConfig, base: Run, data: str | None = None) -> RunConfig:
    """The recipe as the run of one expert on data of one's own, with the base's network and condition."""
    tree = config.model_dump(mode="json")
    tree["name"] = f"{config.name}-component"
    tree["partition"] = {"clusters": 1, "method": "random"}
    tree["start"] = tree["shared"] = tree["student"] = None
    tree["condition"] = base.config.condition.model_dump(mode="json")
    tree["encode"] |= {
        key: getattr(base.config.encode, key) for key in ("autoencoder", "text", "text_tokens")
    }
    tree["encode"]["features"] = "pixels"  # one cluster is grouped by nothing
    if data is not None:
        tree["data"]["source"] = data
    tree["expert"] |= {"override": [], "init": None}
    first = base.start if base.start.done else base.expert(0)
    blueprint = checkpoint.read_blueprint(first.path / checkpoint.CONFIG)
    tree["expert"] |= blueprint.network.model_dump(mode="json", include=set(NetworkConfig.model_fields))
    tree["expert"] |= blueprint.objective.model_dump(mode="json", include=set(ObjectiveConfig.model_fields))
    if base.start.done:
        begins = str(base.start.path.resolve())
        adapter = tree["expert"].get("adapter")
        tree["expert"] |= {"adapter": {**adapter, "base": begins}} if adapter else {"init": begins}
    return validate(tree, "the recipe of a component")


def make(
    run: Run,
    base: Run,
    out: Path,
    key: Path | None = None,
    progress: Progress | None = None,
    prepared: Callable[[], None] = lambda: None,
) -> Stage[ComponentContents]:
    """Train a component in a run of its own, and write the folder that may be given away.

    `prepared` is called when the data is at rest and nothing is trained yet.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already and not empty; give another folder with --out")
    if key is not None:
        signature.public_key(key)  # refuses what is no key before anything is trained
    about = base.partition.contents
    encode.prepare(run, progress=progress)
    prepared()
    if run.data.contents.rows < rows.LEAST:  # before anything is trained
        few = run.data.contents.rows
        raise DataError(f"{few} samples are too few for router rows; give {rows.LEAST} or more")
    conform(run.data, about, classes=calibrating.told_classes(base) > 0)
    partition.partition(run, progress=progress)
    for index in range(len(run.config.inits())):
        adopt(run, index)
    expert = jobs.expert(run, 0)
    beside = out.with_name(f".{out.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    _write(run, base, expert, Stage(beside, ComponentContents), out.name)
    if key is not None:
        _sign(Stage(beside, ComponentContents), key)
    if out.is_dir():
        out.rmdir()
    beside.rename(out)
    return Stage(out, ComponentContents)


def conform(data: Stage[DataContents], about: PartitionContents, *, classes: bool = True) -> None:
    """Give samples at rest the base's classes and statistics, if they are of the base's kind.

    `classes` says whether parts are told classes, which then must be the base's; else new ones may come.
    """
    contents, record = data.contents, data.record
    if contents.shape != about.shape:
        raise DataError(
            f"samples are {list(contents.shape)} (channels, *grid) and the base makes {list(about.shape)}; "
            "set data.size, and data.channels if need be, to what the base has"
        )
    same = contents.model_copy(update={"mean": about.mean, "std": about.std})
    if checking.space(same) != checking.space(about):
        raise DataError("samples are of another kind than the base's; see [data] and [encode] of its recipe")
    labels = {label for name in Parts(data).names for label in _labels(data, name) if label is not None}
    known = about.class_names if classes else ()
    if known and not labels <= set(known):
        unknown = min(labels - set(about.class_names))
        raise DataError(
            f"there is a class '{unknown}' that the base does not know; it has {', '.join(about.class_names)}"
        )
    names = known or contents.class_names
    update: dict[str, Any] = {"mean": about.mean, "std": about.std, "class_names": names}
    data.write(StageRecord.of(record.made_from, record.files, contents.model_copy(update=update)))


def _labels(data: Stage[DataContents], name: str) -> list[str | None]:
    column: list[str | None] = Parts(data).columns(name, ["label"])["label"].to_pylist()
    return column


def _write(run: Run, base: Run, expert: Stage, stage: Stage[ComponentContents], name: str) -> None:
    """Weights, blueprint, router rows, samples of its own, and the record that names them."""
    for file in (checkpoint.WEIGHTS, checkpoint.CONFIG):
        shutil.copyfile(expert.verify(file), stage.path / file)
    config, classes = run.config.component, calibrating.told_classes(base)
    batch = Reader([run.cluster(0)], 1, 0).first(prototypes.MEASURED)
    made = rows.of_samples(batch.x_0, batch.label, classes, config, run.config.seed)
    files, drawn = [checkpoint.WEIGHTS, checkpoint.CONFIG, ROWS], None
    _write_tensors(stage.path / ROWS, made.tensors())
    if config.samples:
        drawn = calibrating.drawn_by(run, 0, config.samples)
        named = {} if drawn.label is None else {"label": drawn.label}
        _write_tensors(stage.path / DRAWN, {"x_0": drawn.x_0, **named})
        files.append(DRAWN)
    about = run.partition.contents
    shared = {key: getattr(about, key) for key in SamplesContents.model_fields}
    private = config.epsilon is not None
    contents = ComponentContents(
        steps=expert.contents.steps,
        rows=expert.contents.rows,
        name=name,
        card=rights.own_card(run.config),
        base=checking.base_of(base),
        samples=SamplesContents.model_validate(shared),
        labels=tuple(_counts(run, classes)) if classes else None,
        prototypes=len(made.means),
        epsilon=config.epsilon,
        delta=config.delta if private else None,
        drawn=0 if drawn is None else len(drawn.x_0),
    )
    stage.finish({}, files, contents)


def _counts(run: Run, classes: int) -> list[int]:
    """Samples of each class; the partition counts them where there is more than one."""
    counts = grown.shares(run).counts
    if counts is not None:
        return counts[0]
    batch = Reader([run.cluster(0)], 1, 0).first()
    assert batch.label is not None
    return torch.bincount(batch.label[batch.label >= 0], minlength=classes).tolist()


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    with replacing(path) as beside:
        checkpoint.write_tensors(beside, tensors)


def _sign(stage: Stage[ComponentContents], key: Path) -> None:
    document = {"component": stage.digest, "name": stage.contents.name, "base": stage.contents.base}
    write_json(stage.path / SIGNATURE, signature.signed(document, key))

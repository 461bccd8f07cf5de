"""What a run looks at before it takes in a stranger's component: nothing that is wrong comes in."""

import math
import stat
from collections.abc import Iterable
from pathlib import Path

import torch

from atoll.components import calibrating, copies
from atoll.credit import signature
from atoll.errors import ConfigError, CorruptError, RunError
from atoll.models import adapter, checkpoint
from atoll.models.checkpoint import Blueprint
from atoll.runs import DONE, Run, Stage, read_json
from atoll.runs.components import DRAWN, ROWS, SIGNATURE, ComponentContents
from atoll.runs.records import SamplesContents
from atoll.sampling import grown

REQUIRED = {checkpoint.WEIGHTS, checkpoint.CONFIG, ROWS}
SMALL = 2**20
"""Bytes of a record, a blueprint or a signature."""
LARGEST = 10**11
"""Weights that are built at all."""
CLAIMED = 100
"""How many times the samples of the whole run a component may say that it has."""


def check(folder: Path, run: Run, signed_by: str | None = None) -> Stage[ComponentContents]:
    """A component's folder, if this run can take it in as it is; an error in one line otherwise."""
    stage = Stage(folder, ComponentContents)
    _require_small(folder, [DONE])
    if not stage.done:
        raise RunError(f"{folder} is no component (no {DONE}); make one with `atoll component`")
    contents = stage.contents
    _check_files(stage)
    _check_samples(contents, run)
    _check_signature(stage, signed_by)
    blueprint = _check_blueprint(stage, run)
    _check_weights(stage, blueprint)
    classes = calibrating.told_classes(run)
    rows = grown.read_rows(folder / ROWS, math.prod(contents.samples.shape), classes)
    if len(rows.means) != contents.prototypes:
        raise CorruptError(f"{folder / ROWS} holds {len(rows.means)} rows, not {contents.prototypes}")
    calibrating.samples_in(stage)
    calibrating.own_rows(run)
    _check_copies(stage, run)
    return stage


def base_of(run: Run) -> str | None:
    """The sha256 of the weights that a run's experts begin with; None where they begin with nothing."""
    return run.start.record.files[checkpoint.WEIGHTS] if run.start.done else None


def _require_small(folder: Path, names: Iterable[str]) -> None:
    """Records are looked at before they are read."""
    for name in names:
        path = folder / name
        if path.is_file() and path.stat().st_size > SMALL:
            raise CorruptError(f"{path} has {path.stat().st_size:,} bytes; do not trust it")


def _check_files(stage: Stage[ComponentContents]) -> None:
    """The files that a component has and no others, each a plain file that is what the record says."""
    files = set(stage.record.files)
    wanted = REQUIRED | ({DRAWN} if stage.contents.drawn else set())
    if files != wanted:
        raise CorruptError(
            f"{stage.path} has files {', '.join(sorted(files))}, not {', '.join(sorted(wanted))}; "
            "ask its owner for it again"
        )
    for name in sorted(files):
        path = stage.path / name
        if not path.exists() or not stat.S_ISREG(path.lstat().st_mode):
            raise CorruptError(f"{path} is missing or no plain file; ask its owner for it again")
    _require_small(stage.path, [checkpoint.CONFIG, SIGNATURE])
    shape, drawn = stage.contents.samples.shape, stage.contents.drawn
    rows = 4 * grown.MOST * (math.prod(shape) + len(stage.contents.samples.class_names) + 2) + grown.SLACK
    for name, most in ((ROWS, rows), (DRAWN, 4 * drawn * (math.prod(shape) + 2) + grown.SLACK)):
        if name in files and (stage.path / name).stat().st_size > most:
            raise CorruptError(f"{stage.path / name} is larger than it can be; do not trust it")
    for name in sorted(files - {checkpoint.WEIGHTS}):  # those once it is known how large they can be
        stage.verify(name)


def _check_samples(contents: ComponentContents, run: Run) -> None:
    """The same space: what values mean, latents of the same autoencoder, the same classes and base."""
    here, there = run.partition.contents, contents.samples
    if there.shape != here.shape:
        raise ConfigError(
            f"the component makes samples {list(there.shape)} (channels, *grid), this run {list(here.shape)}"
        )
    if space(there) != space(here):
        raise ConfigError(
            "the component's values mean something else than this run's (kind, dtype, mean and standard "
            "deviation, autoencoder); make it with --base of this run"
        )
    if calibrating.told_classes(run) and there.class_names != here.class_names:
        raise ConfigError("the component names other classes than this run; make it with --base of this run")
    base = base_of(run)
    if contents.base != base:
        raise ConfigError(
            f"the component was made on the base {_short(contents.base)}, this run's is {_short(base)}; "
            "make it with --base of this run"
        )
    if not 0 < contents.rows <= CLAIMED * max(1, here.rows):
        raise ConfigError(
            f"the component says that it has {contents.rows:,} samples, this run has {here.rows:,}; "
            f"at most {CLAIMED} times as many are believed"
        )
    counts = contents.labels
    if calibrating.told_classes(run) and (counts is None or len(counts) != here.classes):
        raise ConfigError("the component does not say how many samples of each class it has; make it again")


def space(contents: SamplesContents) -> tuple[object, ...]:
    """What values mean; a folder of an autoencoder may lie elsewhere and be called the same."""
    named = contents.autoencoder
    last = None if named is None else named.rstrip("/").rpartition("/")[2]
    return contents.kind, contents.dtype, contents.mean, contents.std, last


def _short(base: str | None) -> str:
    return "none" if base is None else base[:12]


def _check_signature(stage: Stage[ComponentContents], signed_by: str | None) -> None:
    """What is signed is the digest of all files; who signed it matters where somebody says who."""
    path = stage.path / SIGNATURE
    if not path.is_file():
        if signed_by is not None:
            raise CorruptError(f"{stage.path} is not signed; ask its owner for a signature")
        return
    envelope = read_json(path)
    if not isinstance(envelope, dict):
        raise CorruptError(f"{path} is no signature; do not trust it")
    public = str(envelope.get("public_key")) if signed_by is None else signed_by
    document = signature.verified(envelope, public, str(path))
    if document.get("component") != stage.digest or document.get("name") != stage.contents.name:
        raise CorruptError(f"{path} signs something else than {stage.path} holds; do not trust it")


def _check_blueprint(stage: Stage[ComponentContents], run: Run) -> Blueprint:
    """The network that it says it is, before it is built: one that belongs to this run."""
    blueprint = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
    network = blueprint.network
    if network.depth * 12 * network.width**2 > LARGEST:
        raise CorruptError(f"{stage.path / checkpoint.CONFIG} asks for too large a network; do not trust it")
    first = next(iter(run.members.serving(run.config.partition.clusters)), None)
    if first is None:
        raise RunError(f"{run.path} has no part left to compare with; make the run again")
    own = checkpoint.read_blueprint(run.parts[first].path / checkpoint.CONFIG)
    for key in ("role", "shape", "condition", "classes", "text", "steps"):
        here, there = getattr(own, key), getattr(blueprint, key)
        if here != there:
            raise ConfigError(f"the component's network has {key} = {there}, this run's {here}; make it anew")
    return blueprint


def _check_weights(stage: Stage[ComponentContents], blueprint: Blueprint) -> None:
    """All weights that the network or the adapter has, of the right shapes, and numbers."""
    path = stage.path / checkpoint.WEIGHTS
    if blueprint.adapter is not None and blueprint.adapter.base != stage.contents.base:
        raise CorruptError(f"{path} is an adapter of another network than its record says; do not trust it")
    with torch.device("meta"):
        network = blueprint.model_copy(update={"adapter": None}).build()
    wanted = {name: tensor.shape for name, tensor in network.state_dict().items()}
    if path.stat().st_size > sum(8 * math.prod(shape) for shape in wanted.values()) + SMALL:
        raise CorruptError(f"{path} is larger than its network; do not trust it")
    stage.verify(checkpoint.WEIGHTS)
    if blueprint.adapter is not None:
        adapter.read(path, blueprint)
        return
    tensors = checkpoint.read_tensors(path)
    if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
        raise CorruptError(f"{path} does not fit the network beside it; ask its owner for it again")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise CorruptError(f"{path}: {name} holds something that is no number; do not trust it")


def _check_copies(stage: Stage[ComponentContents], run: Run) -> None:
    """Whoever adds the same part twice would have twice its weight."""
    for number in run.members.serving(run.config.partition.clusters):
        part = run.parts[number]
        if part.record.files.get(checkpoint.WEIGHTS) == stage.record.files[checkpoint.WEIGHTS]:
            raise ConfigError(f"{stage.path} is part {number} of this run already; nothing is to be added")
    known = copies.copied(stage, run)
    if known is not None:
        raise ConfigError(
            f"{stage.path} says what part {known} says: a copy, or both have hardly left their start; "
            f"drop {known} first, or train longer"
        )

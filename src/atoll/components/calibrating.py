"""One temperature for each part of the time: without it prototypes are far too sure of real samples.

Calibrated on samples that made no row: of a run's own clusters, held-out ones where there are any; of
components, those that they drew themselves.
"""

import torch

from atoll.components import rows
from atoll.config import ComponentConfig
from atoll.errors import CorruptError
from atoll.flow import draws, mixture
from atoll.models import checkpoint
from atoll.runs import Run, Stage, replacing
from atoll.runs.components import DRAWN, ComponentContents, Members
from atoll.sampling import grown
from atoll.sampling.opening import open_run_model
from atoll.train import prototypes as training
from atoll.train.prototypes import Labelled

DRAWS = 64
"""Samples that an expert draws where its cluster is elsewhere."""


def own_rows(run: Run) -> None:
    """Make the prototypes of a run's own clusters, where they are not there yet."""
    classes = told_classes(run)
    for number in range(run.config.partition.clusters):
        target = grown.known_rows(run, number)
        if not target.is_file():
            some = _first_half(run, number)
            made = rows.of_samples(some.x_0, some.label, classes, ComponentConfig(), run.config.seed)
            with replacing(target) as beside:
                checkpoint.write_tensors(beside, made.tensors())


def told_classes(run: Run) -> int:
    """How many classes the parts of a run are told; 0 if none."""
    return run.partition.contents.classes if run.config.condition.kind == "class" else 0


def _first_half(run: Run, number: int) -> Labelled:
    """Samples of which rows are made."""
    cluster = run.cluster(number)
    if not cluster.here:
        return drawn_by(run, number, 2 * DRAWS)
    return training.first_half(cluster)


def judged(run: Run, number: int) -> Labelled:
    """Samples by which they are judged: others, as far as there are any."""
    cluster = run.cluster(number)
    if not cluster.here:
        return drawn_by(run, number, DRAWS, seed=1)
    return training.second_half(cluster)


def drawn_by(run: Run, number: int, count: int, seed: int = 0) -> Labelled:
    """Samples that a part draws itself, of its classes as often as it has them."""
    sampler = open_run_model(run, precision="float32", experts=(number,), extrapolate=1.0)
    label = None
    if sampler.ensemble.classes:
        counts = grown.shares(run).counts
        assert counts is not None
        share = torch.tensor(counts[number], dtype=torch.float64) + 1e-9
        uniform = draws.sample_uniform(seed, range(count), "component/class")
        label = mixture.draw((share / share.sum()).expand(count, -1), uniform)
    x_0 = sampler.sample(
        count,
        seed=seed,
        strategy="oracle",
        cluster=[number] * count,
        label=None if label is None else label.tolist(),
        temperature=1.0,
        guidance=1.0,
        protect=False,
    )
    return Labelled(x_0.float().cpu(), label)


def samples_in(stage: Stage[ComponentContents]) -> Labelled | None:
    """What a component drew itself; None if it brings nothing."""
    if not stage.contents.drawn:
        return None
    tensors = checkpoint.read_tensors(stage.path / DRAWN)
    shape = (stage.contents.drawn, *stage.contents.samples.shape)
    x_0, label = tensors.get("x_0"), tensors.get("label")
    if x_0 is None or tuple(x_0.shape) != shape or not bool(x_0.isfinite().all()):
        raise CorruptError(f"{stage.path / DRAWN} holds no samples of shape {shape}; do not trust it")
    if label is not None and (tuple(label.shape) != shape[:1] or label.dtype != torch.int64):
        raise CorruptError(f"{stage.path / DRAWN} holds no classes of its samples; do not trust it")
    classes = len(stage.contents.samples.class_names)
    if label is not None and not bool(((label >= 0) & (label < classes)).all()):
        raise CorruptError(f"{stage.path / DRAWN} names classes that there are not; do not trust it")
    return Labelled(x_0.float(), label)


def inverse_temperatures(run: Run, members: Members, learnt: bool | None = None) -> tuple[float, ...]:
    """β for each part of the time, of the routing between the parts that a router knows and all others.

    `learnt` says whether a router tells those apart; by default, if there is one.
    """
    if learnt is None:
        learnt = members.router is not None or (run.router.done and run.config.partition.clusters > 1)
    module, own = grown.between(run, members, learnt), run.config.partition.clusters
    priors = grown.shares(run, members).priors
    known = []
    for number, group in grown.owners(run, members, learnt).items():
        some = judged(run, number) if number < own else samples_in(run.component(number))
        if some is not None:
            known.append(training.Judged(some, group, priors[number]))
    return training.inverse_temperatures(module, known, run.config.seed)

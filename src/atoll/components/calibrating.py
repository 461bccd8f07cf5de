"""One temperature for each part of the time: without it prototypes are far too sure of real samples.

Calibrated on samples that made no row: of a run's own clusters, held-out ones where there are any; of
components, those that they drew themselves.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.components import rows
from atoll.config import ComponentConfig
from atoll.data.store import Reader
from atoll.errors import CorruptError
from atoll.flow import draws, mixture, path, prototypes
from atoll.models import checkpoint
from atoll.runs import Run, Stage, replacing
from atoll.runs.components import DRAWN, ComponentContents, Members
from atoll.sampling import grown
from atoll.sampling.opening import open_run_model

BINS = 10
"""Equal parts of the time."""
MEASURED = 2000
"""Samples of a cluster of which rows are made."""
JUDGED = 128
"""Others by which temperatures are found."""
DRAWS = 64
"""Samples that an expert draws where its cluster is elsewhere."""
NOISES = 1
"""Times and noises of each sample in each part of the time."""


class Labelled(NamedTuple):
    """Samples as networks see them, and their classes; None where nobody is told classes."""

    x_0: Tensor
    label: Tensor | None


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
    batch = Reader([cluster], 1, 0).first(_halves(cluster)[0])
    return Labelled(batch.x_0, batch.label)


def judged(run: Run, number: int) -> Labelled:
    """Samples by which they are judged: others, as far as there are any."""
    cluster = run.cluster(number)
    if not cluster.here:
        return drawn_by(run, number, DRAWS, seed=1)
    if is_held_out(cluster):
        batch = Reader([cluster], 1, 0, held_out=True).first(JUDGED)
        return Labelled(batch.x_0, batch.label)
    first, both = _halves(cluster)
    batch = Reader([cluster], 1, 0).first(both)
    return Labelled(batch.x_0[first:], None if batch.label is None else batch.label[first:])


def is_held_out(cluster: Stage) -> bool:
    """Whether enough samples of a cluster are held out to judge by them."""
    return Reader([cluster], 1, 0, held_out=True).rows >= rows.LEAST


def _halves(cluster: Stage) -> tuple[int, int]:
    """How many rows the first half has, and both together: they rest in the order of their hashes."""
    count = cluster.contents.rows
    both = min(count, MEASURED + JUDGED)
    return max(min(rows.LEAST, count), both - max(1, min(JUDGED, both // 2))), both


def drawn_by(run: Run, number: int, count: int, seed: int = 0) -> Labelled:
    """Samples that a part draws itself, of its classes as often as it has them."""
    sampler = open_run_model(run, precision="float32", experts=(number,))
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


@torch.inference_mode()
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
            known.append((some, group, priors[number]))
    return tuple(_of_bin(module, known, number, run.config.seed) for number in range(BINS))


def _of_bin(
    module: grown.Prototypes, known: Sequence[tuple[Labelled, int, float]], number: int, seed: int
) -> float:
    """The inverse temperature of one part of the time; every part of the run counts by its share."""
    logits, owner, weights = [], [], []
    for some, k, share in known:
        for again in range(NOISES):
            source = draws.generator(seed, f"component/calibration/{k}/{number}", again)
            t = (number + torch.rand(len(some.x_0), generator=source)) / BINS
            x_t = path.point(some.x_0, torch.randn(some.x_0.shape, generator=source), t)
            logits.append(module(x_t, t, some.label if module.classes is not None else None))
            owner.append(torch.full((len(t),), k))
            weights.append(torch.full((len(t),), share / len(t), dtype=torch.float64))
    return prototypes.inverse_temperature(torch.cat(logits), torch.cat(owner), torch.cat(weights))

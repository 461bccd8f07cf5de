"""On which samples parts are valued: held-out ones, by a seed that is committed to and an epoch."""

import contextlib
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.credit.estimate import stratified_times
from atoll.data import holdout
from atoll.data.store import Batch, Reader
from atoll.flow import draws
from atoll.runs import Run

logger = logging.getLogger(__name__)


class Held(NamedTuple):
    """Samples on which parts are valued, and whether nobody trained on them."""

    batch: Batch
    held_out: bool


@dataclass(frozen=True)
class Plan:
    """Which held-out sample is looked at at which time: a function of seed, epoch and settings alone."""

    sample: Tensor
    """(rows,): the number of a held-out sample."""
    t: Tensor
    stratum: Tensor
    """(rows,): the part of the time."""
    points: Tensor
    """The samples that are looked at at all, each once."""


def commitment(seed: int) -> str:
    """What is published before an epoch, so that nobody can choose the seed by its result."""
    return hashlib.sha256(f"atoll credit {seed}".encode()).hexdigest()


def seed_of(run: Run) -> int:
    """The seed of held-out draws."""
    return run.config.seed if run.config.credit.seed is None else run.config.credit.seed


def samples(run: Run) -> Held:
    """What the run holds out; where it holds out nothing, samples of training, of which values flatter."""
    unseen = holdout.of_run(run)
    if unseen is not None:
        return Held(unseen, True)
    logger.warning(
        "%s holds nothing out: parts are valued on samples that they were trained on, which flatters them; "
        "set data.holdout in the recipe of the next run",
        run.path,
    )
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    rows = run.partition.contents.rows
    with contextlib.closing(Reader(clusters, rows, run.config.seed + 1).batches()) as batches:
        return Held(next(batches), False)


def plan(run: Run, samples: int) -> Plan:
    """Rows of an epoch: as many samples as there is use for, each as often, times in strata.

    Times are spread as in the training of experts, so that values are in units of its loss.
    """
    config, expert = run.config.credit, run.config.expert
    source = draws.generator(seed_of(run), "credit", config.epoch)
    points = torch.randperm(samples, generator=source)[: config.num]
    sample = points[torch.arange(config.num) % len(points)]
    uniform = stratified_times(config.num, torch.rand(config.num, generator=source))
    uniform = uniform[torch.randperm(config.num, generator=source)]
    t = draws.logit_normal(uniform) if expert.times == "logit-normal" else uniform
    stratum = (uniform * config.bins).long().clamp(max=config.bins - 1)
    return Plan(sample, draws.shifted(t, expert.time_shift), stratum, points)


def edges(run: Run) -> list[float]:
    """The times between which the strata lie, one more than there are strata."""
    config, expert = run.config.credit, run.config.expert
    uniform = torch.arange(config.bins + 1) / config.bins
    inner = draws.logit_normal(uniform) if expert.times == "logit-normal" else uniform
    return [0.0, *draws.shifted(inner, expert.time_shift)[1:-1].tolist(), 1.0]


def noise(run: Run, rows: slice, shape: Sequence[int]) -> Tensor:
    """The noise of some rows, each its own, the same for all experts and for the base."""
    seed, purpose = seed_of(run), f"credit/noise/{run.config.credit.epoch}"
    each = [draws.generator(seed, purpose, row) for row in range(rows.start, rows.stop)]
    return torch.stack([torch.randn(*shape, generator=source) for source in each])

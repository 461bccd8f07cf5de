"""On which samples parts are valued: held-out ones, by a seed that is committed to and an epoch."""

import contextlib
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.credit.estimate import stratified_times
from atoll.data import holdout
from atoll.data.brought import read as from_source
from atoll.data.store import Batch, Reader
from atoll.errors import ConfigError
from atoll.flow import draws
from atoll.runs import Run, Stage, made_in
from atoll.sampling import grown

logger = logging.getLogger(__name__)


NEAR, NEAR_ROWS = 0.9, 256
"""How much noise is nearly all, and at how many rows, at most, parts are asked about it."""


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


def samples(run: Run, sources: Mapping[int, str] | None = None) -> Held:
    """What the run holds out; where it holds out nothing, samples of training, of which values flatter.

    With them those of parts that it has grown by on this machine, and of parts that `sources` are given for.
    """
    sources, held = sources or {}, _own(run)
    numbers = [one.number for one in run.members.present if one.number not in sources]
    grown_by = [one for number in numbers if (one := _grown(run, number, held)) is not None]
    return brought(run, _joined(held, grown_by), sources) if sources else _joined(held, grown_by)


def _own(run: Run) -> Held:
    unseen = holdout.of_run(run)
    if unseen is not None:
        return Held(unseen, True)
    logger.warning(
        "%s holds nothing out: parts are valued on samples that they were trained on, which flatters them; "
        "set data.holdout in the recipe of the next run",
        run.path,
    )
    clusters = [run.cluster(index) for index in range(run.config.partition.clusters)]
    return Held(_all_of(clusters, run.partition.contents.rows, run.config.seed + 1), False)


def _all_of(clusters: Sequence[Stage], rows: int, seed: int) -> Batch:
    with contextlib.closing(Reader(clusters, rows, seed).batches()) as batches:
        return next(batches)


def _grown(run: Run, number: int, held: Held) -> Batch | None:
    """Samples of a part that the run has grown by, as those of its own: held out, or of training."""
    private = made_in(run, number)
    if private is None or not private.cluster(0).done or held.batch.text is not None:
        return None
    if held.held_out:
        batch = holdout.of_run(private)
    else:
        batch = _all_of([private.cluster(0)], private.partition.contents.rows, run.config.seed + 1)
    return None if batch is None else replace(batch, cluster=torch.full((len(batch.x_0),), number))


def _joined(held: Held, others: Sequence[Batch]) -> Held:
    """The same with samples of other parts."""
    if not others:
        return held
    each = [held.batch, *others]
    known = [one.label for one in each if one.label is not None]
    return held._replace(
        batch=Batch(
            torch.cat([one.x_0.cpu() for one in each]),
            torch.cat([label.cpu() for label in known]) if len(known) == len(each) else None,
            torch.cat([one.cluster_on_cpu for one in each]),
        )
    )


def brought(run: Run, held: Held, sources: Mapping[int, str]) -> Held:
    """The same with samples of parts that were added, whose data are elsewhere: a source for each number.

    Of each as many as its share of all data asks for, if there are so many.
    """
    clusters, there = run.config.partition.clusters, {member.number for member in run.members.present}
    if strange := set(sources) - there:
        raise ConfigError(f"no part {min(strange)} was added to this run; samples are brought for added ones")
    priors = grown.shares(run).priors
    own = int((held.batch.cluster_on_cpu < clusters).sum())
    wanted = {number: round(own * priors[number] / sum(priors[:clusters])) for number in sources}
    each = [
        from_source(run, number, source, max(1, wanted[number])) for number, source in sorted(sources.items())
    ]
    return _joined(held, each)


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


def near_the_noise(run: Run, samples: int) -> Plan:
    """Rows of an epoch at one time at which little but the place of a cluster is known."""
    count = min(NEAR_ROWS, run.config.credit.num)
    source = draws.generator(seed_of(run), "credit/near the noise", run.config.credit.epoch)
    sample = torch.randperm(samples, generator=source)[torch.arange(count) % samples]
    t, stratum = torch.full((count,), NEAR), torch.zeros(count, dtype=torch.long)
    return Plan(sample, t, stratum, torch.arange(samples))


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

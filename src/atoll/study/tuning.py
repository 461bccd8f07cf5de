"""Both sides at their best: batch and learning rate of monolith and experts, by the same search and budget.

A monolith at a batch that does not suit it is a straw man, and so are experts. Each side tries the same
settings with the same samples of training, the monolith first: a start is a monolith with less, and has its
settings. By what samples are grouped and how many experts there should be is tried after that, with what
suits them.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from atoll.config import merged
from atoll.errors import BudgetError
from atoll.launch.job import Job
from atoll.runs import read_json
from atoll.study import cells as room
from atoll.study import halving
from atoll.study.axes import ADAPTER, BUDGET, SEED, START, axes
from atoll.study.cells import Workshop
from atoll.study.design import Cell, Study
from atoll.study.tables import Table, distance_of

SIDES = ("monolith", "experts")
OF_BUDGETS = (BUDGET, START, ADAPTER)
"""Axes that [budget] has, and not [axes]."""


class Setting(NamedTuple):
    """What is tuned of one side."""

    batch: int
    lr: float

    @property
    def tree(self) -> dict[str, Any]:
        """As it stands in a recipe."""
        return {"expert": self._asdict()}

    def __str__(self) -> str:
        """As it stands in the name of a job."""
        return f"batch {self.batch}, lr {self.lr:g}"


class Grouping(NamedTuple):
    """What samples are grouped by, and whether clusters are made equally large."""

    features: str
    balanced: bool

    @property
    def tree(self) -> dict[str, Any]:
        """As it stands in a recipe."""
        return {"encode": {"features": self.features}, "partition": {"balanced": self.balanced}}

    def __str__(self) -> str:
        """As it stands in the name of a job."""
        return f"by {self.features}, {'balanced' if self.balanced else 'as large as they come'}"


class Clusters(NamedTuple):
    """Into how many clusters data are split, each with an expert."""

    clusters: int

    @property
    def tree(self) -> dict[str, Any]:
        """As it stands in a recipe."""
        return {"partition": self._asdict()}

    def __str__(self) -> str:
        """As it stands in the name of a job."""
        return f"{self.clusters} experts"


Tried = Setting | Grouping | Clusters
KINDS: tuple[type[Tried], ...] = (Setting, Grouping, Clusters)


class Trial(NamedTuple):
    """One side of a study with one setting and a part of the budget."""

    shop: Workshop
    cells: Sequence[Cell]
    cell: Cell
    setting: Tried

    @property
    def distance(self) -> float:
        """How far its samples are from the data; it must be trained and judged."""
        return distance_of(read_json(self.shop.result(self.cell)))


RunTrials = Callable[[Sequence[Trial]], None]
"""Trains and judges trials that have no numbers yet."""


def tuned(study: Study, run: RunTrials) -> tuple[Study, list[dict[str, Any]]]:
    """The study with the best settings that were found for each side, and what was tried."""
    tune = study.config.tune
    if tune is None:
        return study, []
    settings = [Setting(*pair) for pair in itertools.product(tune.batch, tune.lr)]
    groupings = [Grouping(*pair) for pair in itertools.product(tune.features, tune.balanced)]
    numbers = [Clusters(number) for number in tune.clusters]
    searches: list[tuple[str, Sequence[Tried]]] = [(side, settings) for side in SIDES]
    searches += [("experts", groupings), ("experts", numbers)]
    records, trained = [], dict[str, float]()
    for side, candidates in searches:
        if candidates:
            study, record = _searched(study, side, candidates, run, trained)
            records.append(record)
    return study, records


def _searched(
    study: Study, side: str, candidates: Sequence[Tried], run: RunTrials, trained: dict[str, float]
) -> tuple[Study, dict[str, Any]]:
    """One search; `trained` has the FLOPs of all that was trained for those before, and then of this one."""
    assert study.config.tune is not None
    budget, before = max(study.config.budget.samples), sum(trained.values())
    least = halving.rungs(budget, study.config.tune.rungs)[0]
    dear = [each for each in candidates if not _affordable(study, side, each, least)]
    candidates = [each for each in candidates if each not in dear] or candidates
    standing = [each for each in candidates if trial(study, side, each, budget).cell.training in trained]
    scores = partial(_scores, study, side, run, trained)
    best, history = halving.search(candidates, budget, study.config.tune.rungs, scores, standing)
    flops = sum(trained.values()) - before
    return given(study, side, best), _record(side, best, history, flops, dear)


def _affordable(study: Study, side: str, setting: Tried, samples: int) -> bool:
    """Whether so many samples of training leave a step for what is tried; features by a start may not."""
    try:
        trial(study, side, setting, samples)
    except BudgetError:
        return False
    return True


def given(study: Study, side: str, setting: Tried) -> Study:
    """The study with a setting for one side."""
    if side == "experts":
        return replace(study, base=merged(study.base, setting.tree))
    config = study.config
    changes = {name: merged(getattr(config, name), setting.tree) for name in ("monolith", "start")}
    return replace(study, config=config.model_copy(update=changes))


def trial(study: Study, side: str, setting: Tried, samples: int) -> Trial:
    """One side at the first value of every axis, with a setting and so many samples of training.

    Its seed is the search's own where there is one: what is best for a seed is so by chance as well.
    """
    config, tune = study.config, study.config.tune
    assert tune is not None
    first = {key: values[:1] for key, values in axes(config).items() if key not in OF_BUDGETS}
    own = {} if tune.seed is None else {SEED: [tune.seed]}
    parts = {name: getattr(config.budget, name)[:1] for name in ("start", "adapter")}
    budget = config.budget.model_copy(update={**parts, "samples": (samples,)})
    changes = {"axes": {**first, **own}, "budget": budget, "tune": None, "name": f"{config.name}-tuning"}
    base = merged(study.base, {"evaluate": {"num": tune.num, "routing": 0}})
    small = replace(study, config=config.model_copy(update=changes), base=base)
    shop = Workshop(given(small, side, setting))
    unfolded = shop.cells()
    cell = next(one for one in unfolded if one.monolith == (side == "monolith"))
    return Trial(shop, unfolded, cell, setting)


def _scores(
    study: Study,
    side: str,
    run: RunTrials,
    trained: dict[str, float],
    settings: Sequence[Tried],
    samples: int,
) -> list[float]:
    trials = [trial(study, side, setting, samples) for setting in settings]
    run(trials)
    trained |= {each.cell.training: each.cell.flops for each in trials}
    return [each.distance for each in trials]


def jobs(trials: Sequence[Trial]) -> list[Job]:
    """A job for every distinct training of trials, and one for each start that they share."""
    named: dict[str, Job] = {}
    for each in trials:
        for job in room.trainings(each.shop, [each.cell]):
            own = job.spec.stage == each.cell.training
            name = f"{job.name}, {each.setting}" if own else job.name
            named.setdefault(job.spec.stage, replace(job, name=name))
    return list(named.values())


def _record(
    side: str, best: Tried, history: Sequence[halving.Rung[Tried]], flops: float, dear: Sequence[Tried]
) -> dict[str, Any]:
    """What a side tried, for programs."""
    return {
        "side": side,
        **best._asdict(),
        "flops": flops,
        "tried": [
            {**setting._asdict(), "samples": rung.samples, "distance": score}
            for rung in history
            for setting, score in zip(rung.candidates, rung.scores, strict=True)
        ],
        "too_dear": [setting._asdict() for setting in dear],
    }


def table(records: Sequence[Mapping[str, Any]]) -> Table:
    """What each side tried, for people."""
    body = [
        [record["side"], _shown(row), f"{row['samples']:,}", f"{row['distance']:.2f}"]
        for record in records
        for row in record["tried"]
    ]
    taken = [
        f"{record['side']}: {_shown(record)} ({record['flops']:.3g} FLOPs of trials)" for record in records
    ]
    dear = [_shown(setting) for record in records for setting in record["too_dear"]]
    note = f"Taken, by successive halving: {'; '.join(taken)}. Trials are not part of the cells' budgets."
    note += f" Not tried, since the first round's budget leaves no step: {'; '.join(dear)}." if dear else ""
    return Table(["side", "tried", "samples", "distance"], body, note)


def _shown(row: Mapping[str, Any]) -> str:
    """What was tried, of a record's line."""
    kind = next(kind for kind in KINDS if set(kind._fields) <= row.keys())
    return str(kind(*(row[name] for name in kind._fields)))

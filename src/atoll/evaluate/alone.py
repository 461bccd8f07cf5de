"""Samples that one part draws alone, asked for what its own training samples are."""

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll.data import holdout
from atoll.data.store import Batch, Reader
from atoll.data.text import TextStates
from atoll.models.conditions import Condition, TextCondition
from atoll.runs import Run, Stage, made_in
from atoll.sampling.sampler import Sampler


class Drawn(NamedTuple):
    """Samples of one part, and what it was told of each."""

    x_0: Tensor
    condition: Condition


def drawn(run: Run, sampler: Sampler, number: int, num: int, seed: int, **settings: Any) -> Drawn:
    """Samples of one part from noise to data; of a part whose data are elsewhere, of all classes in turn."""
    asked: dict[str, Any] = {"strategy": "oracle", "cluster": [number] * num, "seed": seed, **settings}
    home = home_of(run, number)
    own = None if home is None or not home.here else some_of(home, num, run.config.seed + 1)
    condition: Condition = None
    if sampler.ensemble.kind == "class":
        condition = _classes(own, num, sampler.ensemble.classes)
        asked["label"] = condition.tolist()
    elif sampler.ensemble.kind == "text" and own is not None and own.text is not None:
        condition = asked["text"] = _taken(own.text, torch.arange(num) % len(own.x_0))
    return Drawn(sampler.sample(num, **asked).cpu(), condition)


def _classes(own: Batch | None, num: int, classes: int) -> Tensor:
    if own is None or own.label is None:
        return torch.arange(num) % classes
    return own.label[torch.arange(num) % len(own.x_0)].clamp(min=0)


def _taken(text: TextStates, rows: Tensor) -> TextCondition:
    return TextCondition(text.tokens, text.mask, text.pooled)[rows]


def home_of(run: Run, number: int) -> Stage | None:
    """The folder of a part's own samples, if anybody here knows it."""
    if number < run.config.partition.clusters:
        return run.cluster(number)
    private = made_in(run, number)
    return None if private is None else private.cluster(0)


def some_of(stage: Stage, most: int, seed: int) -> Batch:
    """Some samples of a cluster: what is held out of it, else of training."""
    unseen = holdout.read([stage], most)
    if unseen is not None:
        return unseen
    rows = min(most, Reader([stage], 1, seed).rows)
    with contextlib.closing(Reader([stage], rows, seed).batches()) as batches:
        return next(batches)

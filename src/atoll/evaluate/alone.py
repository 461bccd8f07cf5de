"""Samples that one part draws alone, asked for what its own training samples are."""

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll.data import holdout
from atoll.data.store import Batch, Reader
from atoll.models.conditions import Condition, TextCondition
from atoll.runs import Run, Stage, made_in
from atoll.sampling.sampler import Sampler


class Drawn(NamedTuple):
    """Samples of one part, and what it was told of each."""

    x_0: Tensor
    condition: Condition


def drawn(run: Run, sampler: Sampler, number: int, num: int, seed: int, **settings: Any) -> Drawn:
    """Samples of one part from noise to data; of a part whose data are elsewhere, of all classes in turn."""
    home, ensemble = home_of(run, number), sampler.ensemble
    wish: dict[str, Any] = {}
    if home is not None and home.here:
        own = some_of(home, num, run.config.seed + 1)
        wish = asking(own, ensemble.kind, torch.arange(num) % len(own.x_0))
    if ensemble.kind == "class" and not wish:
        wish = {"label": (torch.arange(num) % ensemble.classes).tolist()}
    asked = {"strategy": "oracle", "cluster": [number] * num, "seed": seed, **wish, **settings}
    condition = torch.tensor(wish["label"]) if "label" in wish else wish.get("text")
    return Drawn(sampler.sample(num, **asked).cpu(), condition)


def asking(batch: Batch, kind: str, rows: Tensor) -> dict[str, Any]:
    """What a sampler is asked that is to draw what these rows of real samples are."""
    if kind == "class" and batch.label is not None:
        return {"label": batch.label[rows].clamp(min=0).tolist()}
    if kind == "text" and batch.text is not None:
        return {"text": TextCondition(batch.text.tokens, batch.text.mask, batch.text.pooled)[rows]}
    return {}


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

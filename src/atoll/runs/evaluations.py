"""What `atoll evaluate` found of a run: frozen types, parsed once at the door."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from atoll.config import SampleConfig
from atoll.runs.parsing import read_stamped, validated
from atoll.runs.records import Contents, Count, FileName, Frozen
from atoll.runs.run import EVALUATION, Run
from atoll.runs.stage import Stage

REMEDY = "measure again: `atoll evaluate`"
KEPT = ".evaluation"
"""Beside the runs: features of data and classifiers trained on it, which all runs of that data share."""


def kept(run: Run) -> Path:
    """Where evaluations keep what they have computed of the data."""
    return run.path.resolve().parent / KEPT


class Found(Frozen):
    """A frozen value that keeps what a newer program found besides."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=True)


class Number(Found):
    """A number and the interval that holds it 95 times in 100; None where it cannot be had."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Space(Found):
    """Distances to the data on one kind of features."""

    distance: str
    """What the first of them is called."""
    frechet: Number
    kernel: Number
    precision: Number
    recall: Number
    floor: Mapping[str, float | None]
    """The same of real samples."""


class Shares(Found):
    """How many samples are of each cluster or class."""

    divergence: Number
    floor: float | None = None
    samples: tuple[float, ...] = ()
    data: tuple[float, ...] = ()


class Copies(Number):
    """The share of samples that are copies of training samples, and of real ones that are of each other."""

    floor: float


class Alike(Found):
    """How alike samples of two models from the same noise are, and from other noise."""

    matched: Number
    strangers: Number


class Measurement(Found):
    """All numbers of samples that were drawn in one way."""

    strategy: str
    num: Count
    sample: SampleConfig
    """How they were asked for."""
    features: Mapping[str, Space]
    copies: Copies
    clusters: Shares | None = None
    classes: Shares | None = None
    as_asked: Number | None = None
    disagreement: Number | None = None
    switches: Number | None = None
    diversity: Number | None = None
    diversity_of_data: Number | None = None
    clip_score: Number | None = None
    monolith: Alike | None = None
    experts_per_step: float | None = None
    makers: tuple[Count, ...] = ()
    seconds: Mapping[str, float] = {}

    @property
    def first_space(self) -> Space:
        """By the features that were named first."""
        return next(iter(self.features.values()))


class Routing(Found):
    """Router and experts by time, on real samples."""

    num: Count
    times: tuple[Mapping[str, Any], ...]
    entropy_predicts_greedy_loss: Number | None = None


class Evaluation(Found):
    """All that was found."""

    measured: Mapping[str, Measurement] = {}
    """By how samples were drawn, in words."""
    routing: Routing | None = None


class EvaluationContents(Contents):
    """Measurements as a stage of the run, in the same words as those of `atoll evaluate`."""

    STAGE = "evaluation"
    model_config = ConfigDict(extra="forbid")
    evaluation: FileName


NOTHING = Evaluation()


def measured(run: Run) -> Stage[EvaluationContents]:
    """The stage of a run that measures itself."""
    return Stage(run.path / "measured", EvaluationContents)


def evaluation_file(run: Run) -> Path:
    """What was found of a run: by `atoll evaluate`, which keeps what its stage found, or by that alone."""
    path = run.path / EVALUATION
    return path if path.is_file() else measured(run).path / path.name


def read_evaluation(run: Run) -> Evaluation:
    """All that was found of a run; nothing where nobody looked."""
    path = evaluation_file(run)
    if not path.is_file():
        return NOTHING
    return validated(Evaluation, read_stamped(path), str(path), REMEDY)

"""The student distilled on sites: each takes some steps alone, then their movements are merged.

A site has its own experts and its own clusters, which is all that the labelled expert's target needs. A
round is files in, files out: from the merged weights each site makes its own, and from all of those the
next merged ones are made, by the outer step of DiLoCo (arXiv 2311.08105). Sites weigh as much as they have
data, since the mean over their samples must be the mean over all samples.
"""

import contextlib
import functools
import shutil
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from atoll import devices
from atoll.config import SitesConfig, StudentConfig
from atoll.data.store import Reader, sealed
from atoll.errors import ConfigError, RunError, StaleError
from atoll.models import checkpoint
from atoll.runs import Run, Stage, inputs, replacing
from atoll.runs.locks import alone
from atoll.runs.records import MergedContents, SiteContents, StudentContents
from atoll.train import jobs, loop, student
from atoll.train.ranks import Ranks, joined
from atoll.train.state import DECISIONS, SCALE, TrainingState, collected

AVERAGE, OPTIMISER, MOMENTUM = "average.safetensors", "optimiser.safetensors", "momentum.safetensors"
LOSS_SCALE = "loss-scale.safetensors"
KEPT_ROUNDS = 2
"""Rounds that stay on disk: the last, and the one that it is made from."""

Tensors = dict[str, Tensor]


def settings(run: Run) -> tuple[StudentConfig, SitesConfig]:
    """What the recipe says of its student and of the sites that distil it."""
    config = student.settings(run)
    if config.sites is None:
        raise ConfigError("the recipe has no [student.sites]; add the section, even if nothing is in it")
    return config, config.sites


def groups(run: Run) -> list[list[int]]:
    """The clusters of each site."""
    return inputs.site_clusters(run.config)


def shares(run: Run, known: int = 0) -> list[float]:
    """The share of each site in all samples, as a cluster that is here says."""
    priors = student.priors(run, known)
    return [sum(priors[k] for k in group) for group in groups(run)]


def last_round(run: Run) -> int:
    """How many rounds there are."""
    config, sites = settings(run)
    return -(-config.steps // sites.inner)


def folder(run: Run, number: int, name: str) -> Stage:
    """What one site made in a round, or what was merged from all of them."""
    return run.stage("student", "rounds", f"{number:05d}", name)


def merged(run: Run, number: int) -> Stage:
    """The weights that a round ends with; round 0 begins with those of round -1."""
    return folder(run, number, "merged") if number >= 0 else run.stage("student", "rounds", "start")


def current_round(run: Run) -> int:
    """The first round that is not merged yet."""
    done = [int(path.parent.parent.name) for path in run.student.path.glob("rounds/*/merged/done.json")]
    return max(done, default=-1) + 1


class Site:
    """One site at work, for as many rounds as it is asked for."""

    def __init__(self, run: Run, index: int) -> None:
        if not 0 <= index < len(groups(run)):
            raise ConfigError(f"there is no site {index}: this recipe has 0 to {len(groups(run)) - 1}")
        self.run, self.index, self.group = run, index, list(groups(run)[index])
        self.config, self.sites = settings(run)
        self.clusters = inputs.lesson_clusters(run, self.group)
        self.batch = max(1, round(self.config.batch * shares(run, self.group[0])[index]))

    def made_from(self, number: int) -> dict[str, Any]:
        """What this site's part of a round is made from."""
        record = inputs.lessons_from(self.run, self.group)
        record |= {"inner": self.sites.inner, "merged": merged(self.run, number - 1).digest}
        if number:
            record["own"] = self.stage(number - 1).digest
        return record

    def stage(self, number: int) -> Stage:
        """What this site makes in a round."""
        return folder(self.run, number, f"site-{self.index:02d}")

    def round(self, number: int) -> Stage:
        """The inner steps of one round."""
        stage, device = self.stage(number), devices.best()
        made_from = self.made_from(number)
        one = alone(stage.path, "trained")
        with sealed(*self.clusters), joined() as ranks, one if ranks.first else contextlib.nullcontext():
            if ranks.from_first(lambda: stage.current(made_from)):
                return stage
            task = self._task(number, ranks)
            ranks.from_first(lambda: stage.begin(made_from))
            ranks.from_first(lambda: self._take_over_decisions(number))
            state = loop.train(task, device)
            tensors = collected(state.tensors(), ranks)
            ranks.from_first(lambda: self._hand_in(stage, made_from, tensors, state.step))
        return stage

    @functools.cached_property
    def _reader(self) -> Reader:
        return Reader(self.clusters, self.batch, self.run.config.seed)

    @functools.cached_property
    def _blueprint(self) -> checkpoint.Blueprint:
        return jobs.blueprint_of(self.run, self.config, self._reader)

    @functools.cached_property
    def _loss(self) -> loop.Loss:
        teachers = student.teachers_of(self.run, "label", self._blueprint, self.group)
        return student.dense_loss(self._blueprint, teachers)

    def _task(self, number: int, ranks: Ranks) -> loop.Task:
        return loop.Task(
            name=f"{student.NAME}/site-{self.index:02d}",
            model=self._blueprint.build(),
            loss=self._loss,
            reader=self._reader,
            config=self.config.model_copy(update={"batch": self.batch}),
            seed=self.run.config.seed,
            dropout=student.dropout(self.run, self._blueprint),
            stage=self.stage(number),
            ranks=ranks,
            start=functools.partial(self._start, number),
            until=min((number + 1) * self.sites.inner, self.config.steps),
        )

    def _start(self, number: int, state: TrainingState) -> None:
        """The merged weights and their average, and the optimiser's moments: merged ones or its own."""
        before = merged(self.run, number - 1)
        tensors = _prefixed("model/", before, checkpoint.WEIGHTS) | _prefixed("ema/", before, AVERAGE)
        if number:
            known = before if self.sites.optimiser == "merged" else self.stage(number - 1)
            tensors |= _prefixed("optimiser/", known, OPTIMISER) | self._loss_scale(number - 1)
        state.restore(tensors)
        state.step = number * self.sites.inner

    def _loss_scale(self, number: int) -> Tensors:
        """Of a round in float16, what its loss was multiplied with at its end."""
        stage = self.stage(number)
        return _prefixed(SCALE, stage, LOSS_SCALE) if (stage.path / LOSS_SCALE).is_file() else {}

    def _take_over_decisions(self, number: int) -> None:
        """Steps are taken as in the round before: a trial might fall differently, and costs time."""
        before, own = self.stage(number - 1).path / DECISIONS, self.stage(number).path / "state" / DECISIONS
        if before.is_file() and not own.is_file():
            own.parent.mkdir(exist_ok=True)
            shutil.copyfile(before, own)

    def _hand_in(self, stage: Stage, made_from: dict[str, Any], tensors: Tensors, step: int) -> None:
        names = {"model/": checkpoint.WEIGHTS, "ema/": AVERAGE, "optimiser/": OPTIMISER}
        if any(key.startswith(SCALE) for key in tensors):
            names[SCALE] = LOSS_SCALE
        for prefix, name in names.items():
            _write(
                stage, name, {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            )
        stage.finish(made_from, list(names.values()), SiteContents(steps=step, rows=self._reader.rows))
        shutil.copyfile(stage.path / "state" / DECISIONS, stage.path / DECISIONS)
        shutil.rmtree(stage.path / "state", ignore_errors=True)


def site(run: Run, index: int) -> Stage:
    """One site's part of the round that is due; a no-op if it is handed in already."""
    own = Site(run, index)
    _begin(run, own.group[0])
    number = current_round(run)
    return own.round(number) if number < last_round(run) else run.student


def merge(run: Run) -> Stage:
    """The outer step of the round that is due; after the last round, the student."""
    _begin(run)
    number = current_round(run)
    if number < last_round(run):
        _merge(run, number)
    return _finish(run) if current_round(run) >= last_round(run) else merged(run, number)


def all_rounds(run: Run) -> Stage:
    """Every round of every site, here, one after the other."""
    if run.student.current(inputs.student_from(run)):
        return run.student
    _begin(run)
    sites = [Site(run, index) for index in range(len(groups(run)))]
    for number in range(current_round(run), last_round(run)):
        for site in sites:
            site.round(number)
        _merge(run, number)
    return _finish(run)


def _begin(run: Run, known: int = 0) -> None:
    """The weights that all sites start from: a function of the recipe, whoever computes them."""
    stage, (config, _), made_from = merged(run, -1), settings(run), inputs.begun_from(run)
    if not stage.begin(made_from):
        return
    reader = Reader(inputs.lesson_clusters(run, [known]), 1, run.config.seed)
    network = student.first_network(run, jobs.blueprint_of(run, config, reader), config.init)
    weights = dict(network.state_dict())
    _write(stage, checkpoint.WEIGHTS, weights)
    _write(stage, AVERAGE, weights)
    stage.finish(made_from, [checkpoint.WEIGHTS, AVERAGE], MergedContents())


def _merge(run: Run, number: int) -> Stage:
    """One outer step."""
    config, sites = settings(run)
    stage, before = merged(run, number), merged(run, number - 1)
    parts = [folder(run, number, f"site-{index:02d}") for index in range(len(groups(run)))]
    away = [part.path.name for part in parts if not part.done]
    if away:
        raise RunError(f"round {number} waits for {', '.join(away)}; run `atoll student --site` for each")
    for part in parts:
        if part.record.made_from.get("merged") != before.digest:
            raise StaleError(f"{part.path} was made from other weights than this round's; delete it")
    made_from = {"before": before.digest, "parts": [part.digest for part in parts], "shares": shares(run)}
    if not stage.begin(made_from):
        return stage
    weights = _read(before, checkpoint.WEIGHTS)
    momentum = _read(before, MOMENTUM) if number else None
    mean = weighted_mean([_read(part, checkpoint.WEIGHTS) for part in parts], shares(run))
    weights, momentum = outer_step(weights, mean, momentum, sites.outer_lr, sites.momentum)
    average = weighted_mean([_read(part, AVERAGE) for part in parts], shares(run))
    written = {checkpoint.WEIGHTS: weights, MOMENTUM: momentum, AVERAGE: average}
    if sites.optimiser == "merged":
        written[OPTIMISER] = weighted_mean([_read(part, OPTIMISER) for part in parts], shares(run))
    for name, tensors in written.items():
        _write(stage, name, tensors)
    steps = min((number + 1) * sites.inner, config.steps)
    stage.finish(made_from, list(written), MergedContents(steps=steps, round=number))
    if number >= KEPT_ROUNDS:
        shutil.rmtree(folder(run, number - KEPT_ROUNDS, "merged").path.parent)
    return stage


def outer_step(
    weights: Tensors, mean: Tensors, momentum: Tensors | None, lr: float, decay: float
) -> tuple[Tensors, Tensors]:
    """Nesterov's step along the mean movement of the sites (DiLoCo, arXiv 2311.08105, alg. 1)."""
    moved, kept = {}, {}
    for name, value in weights.items():
        gradient = value - mean[name]
        kept[name] = gradient if momentum is None else decay * momentum[name] + gradient
        moved[name] = value - lr * (gradient + decay * kept[name])
    return moved, kept


def weighted_mean(parts: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Of each tensor, in double precision."""
    total = sum(weights)
    return {
        name: sum(
            (part[name].double() * (weight / total) for part, weight in zip(parts, weights, strict=True)),
            start=0 * first.double(),
        ).to(first.dtype)
        for name, first in parts[0].items()
    }


def _finish(run: Run) -> Stage:
    """The averaged weights of the last round are the student."""
    made_from = inputs.student_from(run)
    if run.student.current(made_from):
        return run.student
    config, _ = settings(run)
    clusters = inputs.lesson_clusters(run)
    reader = Reader(clusters, 1, run.config.seed)
    last = merged(run, last_round(run) - 1)
    contents = functools.partial(
        StudentContents, steps=config.steps, rows=reader.rows, rounds=last_round(run)
    )
    blueprint = jobs.blueprint_of(run, config, reader)
    describe = functools.partial(student.alone, run, run.student, {})
    jobs.publish(run.student, blueprint, _read(last, AVERAGE), made_from, contents, describe)
    return run.student


def _write(stage: Stage, name: str, tensors: Tensors) -> None:
    with replacing(stage.path / name) as beside:
        checkpoint.write_tensors(beside, tensors)


def _read(stage: Stage, name: str) -> Tensors:
    return checkpoint.read_tensors(stage.verify(name))


def _prefixed(prefix: str, stage: Stage, name: str) -> Tensors:
    return {f"{prefix}{key}": value for key, value in _read(stage, name).items()}

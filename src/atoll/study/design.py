"""What a study is: a base recipe and axes, read from one TOML file and unfolded into cells."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atoll import plan
from atoll.config import (
    GUIDANCE_NUM,
    GUIDANCE_REAL,
    GUIDANCE_STEPS,
    OF_ONE_MODEL,
    AdapterConfig,
    Facts,
    RunConfig,
    StartConfig,
    TrainConfig,
    anchored,
    assignments,
    explain,
    grouping,
    merged,
    operational,
    read_toml,
    validate,
)
from atoll.errors import BudgetError, ConfigError
from atoll.evaluate import unlearnt
from atoll.plan import known
from atoll.runs import digest, read_json
from atoll.study import checks
from atoll.study.axes import (
    ADAPTER,
    BUDGET,
    CLUSTERS,
    CONDITION,
    FEATURES,
    GUIDANCE,
    SEED,
    START,
    STRATEGY,
    points,
)
from atoll.study.settings import StudyConfig

OF_ENSEMBLES = (
    "partition.",
    "router.",
    STRATEGY,
    START,
    "shared.",
    ADAPTER,
    FEATURES,
    "sample.temperature",
    "sample.guidances",
    "sample.against",
    "sample.rest",
    "sample.untold",
    "sample.extrapolate",
    "sample.extrapolations",
    "expert.override",
    "expert.steps_of",
)
"""Axes that say something of experts and router only: the monolith is the same along them."""
OF_TRAINING = ("seed", "data", "encode", "partition", "condition", "start", "expert", "shared", "router")
"""What a training depends on."""


@dataclass(frozen=True)
class Cell:
    """One combination: a run, and how it is sampled and judged."""

    values: Mapping[str, Any]
    """What it has along each axis; a list or table as it stands in the file."""
    config: RunConfig
    monolith: bool
    flops: float = 0.0
    """Of training, with the router's and the start's."""
    start: "Cell | None" = None
    """What its experts begin with, if they have that in common."""

    @property
    def training(self) -> str:
        """A name for what is trained: equal for cells that differ in sampling only.

        What stands at its default is left out, so that a new key does not make all trainings new.
        """
        tree = self.config.model_dump(mode="json", include=set(OF_TRAINING), exclude_defaults=True)
        for job in ("start", "expert", "router", "shared"):
            for key in operational(type(getattr(self.config, job))) if job in tree else ():
                tree[job].pop(key, None)
        alone, encode = self.config.partition.clusters == 1, tree.pop("encode", {})
        if alone or "start" in tree:
            tree.pop("router", None)
        if alone or encode.get("features") == "pixels":  # which is no part of a name since it was the default
            encode.pop("features", None)
        tree |= {"encode": encode} if encode else {}
        return digest(tree)[:12]

    @property
    def id(self) -> str:
        """A name for the cell: equal for cells of several studies that are the same."""
        tree = self.config.model_dump(mode="json", include={"sample", "evaluate"}, exclude_defaults=True)
        tree.get("evaluate", {}).pop("routing", None)  # of a training, not of a cell
        return digest([self.training, tree])[:12]

    @property
    def group(self) -> tuple[tuple[str, Any], ...]:
        """All but the seed: cells of one group are repetitions."""
        return (("monolith", self.monolith), *((k, str(v)) for k, v in self.values.items() if k != SEED))

    @property
    def beside(self) -> tuple[tuple[str, str], ...]:
        """What a cell and the monolith that it is compared with have in common."""
        alone = self.config.condition.kind == "none"  # then only experts can be guided, against their start
        own = (*OF_ENSEMBLES, GUIDANCE) if alone else OF_ENSEMBLES
        return tuple((k, str(v)) for k, v in self.values.items() if not k.startswith(own))


@dataclass(frozen=True)
class Study:
    """A study as it was written, and where it lives."""

    config: StudyConfig
    base: Mapping[str, Any]
    """The recipe's tree with what is different in every cell."""
    path: Path

    def resolved(self) -> str:
        """The study as JSON, for a worker that does one training of it."""
        config = self.config.model_dump(mode="json")
        return json.dumps({"config": config, "base": self.base, "path": str(self.path)}, sort_keys=True)

    @classmethod
    def read(cls, path: Path) -> "Study":
        """The study as it was resolved."""
        tree = read_json(path)
        return cls(StudyConfig.model_validate(tree["config"]), tree["base"], Path(tree["path"]))

    @property
    def base_run(self) -> RunConfig:
        """The run that data and partitions are made for."""
        return validate({**self.base, "name": "base"}, str(self.path))


def load(path: Path, overrides: Iterable[str] = ()) -> Study:
    """Read a study; an override changes one of its own keys, or else a key of its recipe in every cell."""
    pairs = tuple(overrides)
    tree = read_toml(path, "no such study; see recipes/studies/ for examples")
    changes = assignments(pairs)
    own = {key: value for key, value in changes.items() if key in StudyConfig.model_fields}
    rest = {key: value for key, value in changes.items() if key not in own}
    tree = merged(tree, own)
    tree["set"] = merged(tree.get("set", {}), rest)
    try:
        config = StudyConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, StudyConfig)}") from None
    place = path.parent / config.recipe
    recipe = read_toml(place, "no such recipe; 'recipe' is a path from the study's file")
    recipe = _without_start(anchored(recipe, place.parent))
    # Router and experts are looked at by time only where a study asks for it.
    base = merged({"evaluate": {"routing": 0}}, merged(recipe, anchored(config.set, path.parent)))
    study = Study(config, base, path)
    checks.check(config, base, study.base_run)  # a mistake shows before anything is done
    for point in points(config):
        validate({**_at(base, point), "name": "cell"}, str(path))
    return study


def _without_start(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without its start, for which a study has a share of its budget, and without guidance by it."""
    tree = {key: section for key, section in recipe.items() if key != "start"}
    by_start = ["extrapolate", "extrapolations"]
    if tree.get("sample", {}).get("against") == "start":
        by_start += ["against", "untold", "rest", "guidance", "guided"]
    if "sample" in tree:
        tree["sample"] = {key: value for key, value in tree["sample"].items() if key not in by_start}
    return tree


def unfold(study: Study, data: Facts) -> list[Cell]:
    """All cells, the monoliths among them; points that come to the same are one cell.

    `data` is what is known of the samples.
    """
    cells: dict[str, Cell] = {}
    for point in points(study.config):
        for cell in (_monolith(study, point, data), _ensemble(study, point, data)):
            cells.setdefault(cell.id, cell)
    return list(cells.values())


def _ensemble(study: Study, point: Mapping[str, Any], data: Facts) -> Cell:
    tree = merged(_at(study.base, point), _of_adapters(study) if point.get(ADAPTER) else {})
    if study.config.budget.shared:
        tree = merged({"shared": {}}, tree)
    cell = _within_budget(study, tree, point, data, monolith=False)
    return cell if cell.config.partition.clusters > 1 else _monolith(study, point, data)


def _of_adapters(study: Study) -> dict[str, Any]:
    """What is different for their training; what they are is said where their base is known."""
    different = dict(study.config.adapter)
    if "expert" in different:
        different["expert"] = {key: value for key, value in different["expert"].items() if key != "adapter"}
    return different


def _monolith(study: Study, point: Mapping[str, Any], data: Facts) -> Cell:
    return _alone(study, point, data, study.config.monolith)


def _start(study: Study, point: Mapping[str, Any], data: Facts) -> Cell | None:
    """What experts begin with: a monolith with its share of the budget, whose rate need not fall."""
    samples = int(point.get(START, 0) * point[BUDGET])
    if not samples:
        return None
    own = {key: value for key, value in study.config.start.items() if key != CONDITION}
    different = merged({"expert": {"decay": "none", "entry": False}}, own)
    start = _alone(study, {**point, BUDGET: samples}, data, different)
    return _told(study, point, start) if study.config.start.get(CONDITION) else start


def _told(study: Study, point: Mapping[str, Any], start: Cell) -> Cell:
    """The same network, told clusters by number: the start of a run that has those clusters."""
    partition = validate({**_at(study.base, point), "name": "cell"}, str(study.path)).partition
    training = {key: getattr(start.config.expert, key) for key in TrainConfig.model_fields}
    settings = StartConfig(**{**training, "condition": study.config.start[CONDITION]})
    return replace(start, config=start.config.model_copy(update={"partition": partition, "start": settings}))


def _alone(study: Study, point: Mapping[str, Any], data: Facts, different: Mapping[str, Any]) -> Cell:
    shared = {key: value for key, value in point.items() if not key.startswith(OF_ENSEMBLES)}
    tree = merged(_at(study.base, shared), different)
    tree["partition"] = {"clusters": 1}
    tree.pop("shared", None)
    tree["expert"] = {key: value for key, value in tree.get("expert", {}).items() if key != "override"}
    tree["sample"] = {**tree.get("sample", {}), **OF_ONE_MODEL, "strategy": "ancestral"}
    return _within_budget(study, tree, shared, data, monolith=True)


def _at(base: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the values of one point in their places; samples are drawn with the run's seed."""
    tree: dict[str, Any] = dict(base)
    for key, value in point.items():
        if key not in (BUDGET, START, ADAPTER):
            tree = merged(tree, _nested(key.split("."), value))
    seed = tree.get("seed", 0)
    return merged({"sample": {"seed": seed}}, tree)


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    return {keys[0]: _nested(keys[1:], value) if keys[1:] else value}


def _guided(config: RunConfig, point: Mapping[str, Any]) -> tuple[RunConfig, Mapping[str, Any]]:
    """A cell as it is asked for, without guidance where there is nothing to guide by."""
    if config.condition.kind != "none" or config.sample.against == "start":
        return config, point
    sample = config.sample.model_copy(update={"guidance": 1.0})
    plain = {key: 1.0 if key == GUIDANCE else value for key, value in point.items()}
    return config.model_copy(update={"sample": sample}), plain


def _grouped(config: RunConfig) -> RunConfig:
    """A cell that says by what it is grouped, where that was left to the rule."""
    features = grouping.chosen(config)
    return config.model_copy(update={"encode": config.encode.model_copy(update={"features": features})})


def _within_budget(
    study: Study,
    tree: Mapping[str, Any],
    point: Mapping[str, Any],
    data: Facts,
    *,
    monolith: bool,
) -> Cell:
    """The cell with as many steps as its budget allows: the router its share, the experts the rest."""
    config, point = _guided(validate({**tree, "name": "cell"}, str(study.path)), point)
    share, samples = study.config.budget.router, point[BUDGET]
    forward, router = plan.forward_flops(config, data)
    spent = 0.0
    changes: dict[str, Any] = {}
    clusters = config.partition.clusters
    if clusters > 1:
        steps = max(1, round(share * samples * forward / router / config.router.batch))
        spent = steps * config.router.batch * router / forward
        changes["router"] = config.router.model_copy(update={"steps": steps})
    start = None if monolith else _start(study, point, data)
    if start is not None:
        spent += start.config.expert.batch * start.config.expert.steps
    if config.shared is not None:
        steps = max(1, round(study.config.budget.shared * samples / config.shared.batch))
        spent += steps * config.shared.batch
        changes["shared"] = config.shared.model_copy(update={"steps": steps})
    config = _grouped(config)
    if config.grouped_by_start:  # half a forward pass of every sample, where a step has three
        spent += (data.rows or 0) / 6
    spent += _choosing(config, data, forward) + plan.entry_flops(config, data) / (3 * forward)
    expert: dict[str, Any] = {}
    if start is not None:  # by name: where it lies says nothing of what it is
        expert |= _begun_with(start.training, point.get(ADAPTER, 0), study.config.adapter_settings)
    batch = config.expert_for(0).batch
    trained = config.model_copy(update={"expert": config.expert.model_copy(update=expert)})
    cost = plan.training_flops(trained, data) / (3 * forward)  # adapters need no gradients of their base
    steps = int((samples - spent) / (clusters * batch * cost))
    if steps < 1:
        raise BudgetError(
            f"study {study.config.name}: a budget of {samples} samples leaves no step for {clusters} experts"
        )
    expert["steps"] = steps
    if config.expert.batch_of == "monolith":
        # The same training has the same name, however its batch was said.
        expert |= {"batch": config.expert.batch // clusters, "batch_of": "expert"}
    changes["expert"] = config.expert.model_copy(update=expert)
    config = config.model_copy(update=changes)
    flops = 3 * forward * (spent + clusters * batch * steps * cost)
    return Cell({**point, CLUSTERS: clusters}, config, monolith, flops, start)


def _choosing(config: RunConfig, data: Facts, forward: float) -> float:
    """What choosing costs at most, in samples of training: a third of a pass for a step, and what looks."""
    sample = config.sample
    farther = len(sample.extrapolations) if len(sample.extrapolations) > 1 else 0
    first = min(sample.guidances, default=sample.guidance)
    asked = [first] * farther
    if len(sample.guidances) > 1:  # the first of them was tried with the extrapolation
        asked += sorted(sample.guidances)[1 if farther else 0 :]
    if not asked:
        return 0.0
    passes = sum(1 if guidance == 1 else 2 for guidance in asked) * GUIDANCE_NUM * GUIDANCE_STEPS
    seen = GUIDANCE_REAL + len(asked) * GUIDANCE_NUM
    return (passes + seen * unlearnt.flops(known.about_data(config, data).shape) / forward) / 3


def _begun_with(base: str, rank: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Experts that go on from a network, or adapters of it."""
    return {"adapter": AdapterConfig(rank=rank, base=base, **settings)} if rank else {"init": base}

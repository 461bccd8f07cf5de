"""Every stage of a run, once: what it reads, what it is made from, who makes it, what that needs.

Driver, engines, stores and studies ask here, and know no stage by name. To add one, add a `Kind`.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.config import RunConfig, TrainConfig
from atoll.errors import ConfigError
from atoll.runs import edges, inputs
from atoll.runs.run import Run
from atoll.runs.stage import Stage

Names = Callable[[RunConfig, int], Sequence[str]]
"""Names of stages, given what a run is and an index."""
MadeFrom = Callable[[Run, int], dict[str, Any]]
"""What a stage is made from today, given its index."""
Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much is done and how much there is."""


@dataclass(frozen=True)
class Kind:
    """One kind of stage."""

    name: str
    made_from: MadeFrom | str
    """The digests of inputs and settings, or `module:function` that tells them."""
    make: str = ""
    """Who makes it: `module:function` of the run and, if several, the index; imported where work is done."""
    folder: str = ""
    """Below the run's, with {index} where there are several; by default its name."""
    part_of: str = ""
    """The stage that it is made with, if not by itself."""
    reads: Names = lambda config, index: ()
    """Stages whose files it reads."""
    records: Names = lambda config, index: ()
    """Stages of which it reads only the record."""
    wanted: Callable[[RunConfig], bool] = lambda config: True
    """Whether a recipe asks for it."""
    count: Callable[[RunConfig], int] | None = None
    """How many there are of it, where they are numbered."""
    command: str = ""
    """The command that makes it; by default its name."""
    training: Callable[[Run, int], TrainConfig] | None = None
    """The settings of what is trained; a training is a job of its own, on a GPU and by ranks if there are."""
    alone: bool = False
    """A job of its own although nothing is trained."""
    gpu: bool = False
    """Whether making it has use for a GPU, although nothing is trained."""
    network: bool = False
    """Whether it holds a network that can be sampled with."""
    adopts: bool = False
    """Whether it is brought in from outside the run, by whoever needs it first."""
    leads: bool = False
    """Whether making it says anew what the run is, where it lives in a store; an expert alone may not."""
    again: bool = False
    """Cheap: made again without asking when what it is made from has changed."""
    mends: bool = False
    """Whether its maker goes on with an unfinished one whose inputs have changed, keeping what it can."""
    reports: bool = False
    """Whether its maker tells its progress."""
    judges: bool = False
    """Whether it only measures what others are."""
    page: bool = False
    """Whether it is a page for people, from which nothing is made: whoever has the run draws it."""
    parts: str = ""
    """What cuts it into parts for several machines, as `module:class`; see `Parts`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder or self.name)


@dataclass(frozen=True)
class Node:
    """One stage of one run."""

    kind: Kind
    run: Run
    index: int = 0

    @property
    def name(self) -> str:
        """What people and logs call it: `expert 3`."""
        return f"{self.kind.name} {self.index}" if (self.kind.count is not None) else self.kind.name

    @property
    def stage(self) -> Stage:
        """Where it is."""
        return self.run.stage(*self.kind.folder.format(index=self.index).split("/"))

    @property
    def reads(self) -> list["Node"]:
        """The stages whose files it reads."""
        return [node(self.run, name) for name in self.kind.reads(self.run.config, self.index)]

    @property
    def records(self) -> list["Node"]:
        """The stages of which it reads only the record."""
        return [node(self.run, name) for name in self.kind.records(self.run.config, self.index)]

    @property
    def maker(self) -> "Node":
        """The stage whose making makes this one: itself, unless it is part of another."""
        return node(self.run, self.kind.part_of) if self.kind.part_of else self

    @property
    def inputs(self) -> list["Node"]:
        """The stages that must be made before it."""
        return list({one.maker.name: one.maker for one in (*self.reads, *self.records)}.values())

    @property
    def is_job(self) -> bool:
        """Whether it is made in a process of its own, wherever there is a machine for it."""
        return self.kind.training is not None or self.kind.alone

    @property
    def training(self) -> TrainConfig | None:
        """The settings of what is trained, if anything is."""
        return None if self.kind.training is None else self.kind.training(self.run, self.index)

    def made_from(self) -> dict[str, Any]:
        """What it is made from today; what it reads must be finished."""
        tells = self.kind.made_from
        return (resolve(tells) if isinstance(tells, str) else tells)(self.run, self.index)

    def make(self, progress: Progress | None = None) -> Stage:
        """Make it here, in this process."""
        function = resolve(self.kind.make)
        arguments = (self.run,) if self.kind.count is None else (self.run, self.index)
        made = function(*arguments, progress=progress) if self.kind.reports else function(*arguments)
        assert isinstance(made, Stage)
        return made


def resolve(path: str) -> Any:
    """What `module:name` names, imported now."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def makers(name: str) -> list[str]:
    """The module that makes a stage of this name, if there is one."""
    return [kind.make.partition(":")[0] for kind in KINDS if kind.make and kind.name == name.split(" ")[0]]


def nodes(run: Run) -> list[Node]:
    """All stages that the recipe asks for, each after those that it reads."""
    ordered: dict[str, Node] = {}

    def add(one: Node) -> None:
        if one.name not in ordered:
            for before in one.inputs:
                add(before)
            ordered[one.name] = one

    for kind in KINDS:
        for one in _of_kind(run, kind):
            add(one)
    return list(ordered.values())


def made(run: Run) -> list[Node]:
    """All stages but those that are made with another."""
    return [one for one in nodes(run) if not one.kind.part_of]


def _of_kind(run: Run, kind: Kind) -> Iterator[Node]:
    if kind.wanted(run.config):
        count = kind.count(run.config) if kind.count is not None else 1
        yield from (Node(kind, run, index) for index in range(count))


def node(run: Run, name: str) -> Node:
    """The stage of this name."""
    word, _, number = name.partition(" ")
    kind = next((kind for kind in KINDS if kind.name == word), None)
    if kind is None:
        raise ConfigError(f"there is no stage '{name}'; there are {', '.join(one.name for one in KINDS)}")
    if not kind.wanted(run.config):
        raise ConfigError(f"the recipe has no [{word}]; add the section, even if nothing is in it")
    index, count = int(number or 0), 1 if kind.count is None else kind.count(run.config)
    if not 0 <= index < count:
        raise ConfigError(f"there is no {word} {index}: this run has {word}s 0 to {count - 1}")
    return Node(kind, run, index)


def trainings(config: RunConfig) -> dict[str, TrainConfig]:
    """The settings of every training of a recipe, by the names of stages."""
    all_nodes = nodes(Run(Path(config.name), config))
    return {one.name: settings for one in all_nodes if (settings := one.training) is not None}


def of_stage(run: Run, stage: Stage) -> Node:
    """Whose folder this is."""
    for one in nodes(run):
        if one.stage.path == stage.path:
            return one
    raise ConfigError(f"the recipe does not ask for {stage.path}; add its section")


def of_command(run: Run, command: str, index: int = 0) -> list[Node]:
    """The stages that a command makes, one after the other."""
    named = [kind for kind in KINDS if (kind.command or kind.name) == command]
    stages = [one for one in made(run) if one.kind in named]
    if not stages or any(kind.count is not None and kind.name == command for kind in named):
        return [node(run, f"{command} {index}")]
    return stages


def after(run: Run, names: Sequence[str]) -> list[Node]:
    """These stages and all that are made from them, in order."""
    reached = set(names)
    for one in made(run):
        if reached.intersection(before.name for before in one.inputs):
            reached.add(one.name)
    return [one for one in made(run) if one.name in reached]


KINDS: tuple[Kind, ...] = (
    Kind(
        "data",
        "atoll.data.identity:data_from",
        "atoll.data.encode:prepare",
        command="prepare",
        leads=True,
        mends=True,
        reports=True,
        parts="atoll.data.shares:Pieces",
        gpu=True,
    ),
    Kind(
        "pool",
        inputs.pool_from,
        "atoll.data.pool:pool",
        reads=lambda config, index: ["data"],
        wanted=lambda config: config.pooled,
        command="start",
        reports=True,
    ),
    Kind(
        "features",
        inputs.features_from,
        "atoll.train.features:features",
        reads=edges.of_features,
        wanted=lambda config: config.grouped_by_start,
        command="start",
        alone=True,
        gpu=True,
    ),
    Kind(
        "partition",
        inputs.partition_from,
        "atoll.data.partition:partition",
        reads=edges.of_partition,
        leads=True,
        reports=True,
        parts="atoll.data.shares:Assignments",
    ),
    Kind(
        "cluster",
        inputs.partition_from,
        folder="partition/cluster-{index:02d}",
        part_of="partition",
        count=edges.each_cluster,
    ),
    Kind(
        "init",
        inputs.init_from,
        "atoll.runs.adopt:adopt",
        folder="init/{index:02d}",
        wanted=lambda config: bool(config.inits()),
        count=lambda config: len(config.inits()),
        adopts=True,
    ),
    Kind(
        "start",
        inputs.start_from,
        "atoll.train.jobs:start",
        reads=edges.of_start,
        wanted=lambda config: config.start is not None,
        training=lambda run, index: run.config.start_settings(),
    ),
    Kind(
        "shared",
        inputs.shared_from,
        "atoll.train.jobs:shared",
        reads=edges.of_shared,
        wanted=lambda config: config.shared is not None,
        training=lambda run, index: run.config.shared_settings(),
        network=True,
    ),
    Kind(
        "router",  # before the experts, since it takes longest
        inputs.router_from,
        "atoll.train.jobs:router",
        reads=edges.clusters,
        wanted=edges.routed,
        training=lambda run, index: run.config.router,
        network=True,
    ),
    Kind(
        "expert",
        inputs.expert_from,
        "atoll.train.jobs:expert",
        folder="experts/{index:02d}",
        reads=edges.of_expert,
        count=edges.each_cluster,
        training=lambda run, index: run.expert_settings(index),
        network=True,
    ),
    Kind(
        "drawn",
        inputs.drawn_from,
        "atoll.train.drawn:draw",
        folder="drawn/cluster-{index:02d}",
        reads=edges.of_drawn,
        records=lambda config, index: ["partition"],
        wanted=edges.drawn,
        count=edges.each_cluster,
        command="student",
        alone=True,
        gpu=True,
    ),
    Kind(
        "student",
        inputs.student_from,
        "atoll.train.distil:student",
        reads=edges.of_student,
        records=lambda config, index: ["partition"],
        wanted=edges.dense,
        training=lambda run, index: inputs.student_settings(run.config),
        network=True,
    ),
    Kind(
        "few-step",
        inputs.few_step_from,
        "atoll.train.few_step:few_step",
        reads=edges.of_few,
        records=lambda config, index: ["partition"],
        wanted=edges.few,
        command="student",
        training=lambda run, index: inputs.few_settings(run.config),
        network=True,
    ),
    Kind(
        "guidance",
        inputs.guidance_from,
        "atoll.evaluate.guidance:choose",
        reads=edges.of_guidance,
        wanted=lambda config: config.sample.chooses,
        again=True,
    ),
    Kind(
        "samples",
        "atoll.runs.shown:samples_from",
        "atoll.sampling.stage:draw",
        reads=edges.of_samples,
        records=lambda config, index: ["partition"],
        again=True,
        reports=True,
    ),
    Kind(
        "evaluation",
        "atoll.runs.shown:evaluation_from",
        "atoll.evaluate.stage:measure",
        folder="measured",
        reads=edges.of_evaluation,
        wanted=edges.evaluated,
        gpu=True,
        judges=True,
        again=True,
        reports=True,
    ),
    Kind(
        "report",
        "atoll.runs.shown:report_from",
        "atoll.pages.stage:write",
        reads=edges.of_report,
        records=lambda config, index: ["partition"],
        again=True,
        page=True,
    ),
)
"""All stages that there are."""

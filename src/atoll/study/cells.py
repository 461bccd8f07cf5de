"""The work of a study: data once, a partition once, a training once, and every cell judged once."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atoll import plan
from atoll.config import EvaluateConfig, RunConfig, SampleConfig, settings_digest
from atoll.data import encode, partition
from atoll.data.identity import identity_of_settings
from atoll.evaluate import routing
from atoll.evaluate.measure import Judge, sample_and_judge
from atoll.launch.job import Job, JobSpec
from atoll.runs import (
    RESOLVED,
    Run,
    Stage,
    digest,
    graph,
    inputs,
    read_json,
    replacing,
    runs_folder,
    stamped,
    write_json,
)
from atoll.runs.adopt import adopt
from atoll.runs.foreign import foreign
from atoll.runs.known import known
from atoll.runs.records import DataContents, SampleFormat
from atoll.sampling import gallery
from atoll.sampling.opening import open_run_model
from atoll.sampling.request import OPENING
from atoll.sampling.samples import Samples
from atoll.study.design import Cell, Study, unfold

Progress = Callable[[str, int, int], None]
SHOWN = 12
"""Samples of each cell that are kept as a picture."""
WORKER = "atoll.study.work"
"""The module that does one training of a study."""


class Workshop:
    """Where studies keep what they share: anything that two cells have in common is made once."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.root = runs_folder() / "studies"
        self.shared = self.root / "shared"
        self.folder = self.root / study.config.name
        self._data: Stage[DataContents] | None = None

    def data(self, progress: Progress | None = None) -> Stage[DataContents]:
        """The samples, prepared once for all studies that stand on them."""
        if self._data is None:
            self._data = self._prepared(progress)
        return self._data

    def _prepared(self, progress: Progress | None) -> Stage[DataContents]:
        config = self.study.base_run
        name = digest([identity_of_settings(config), config.data.source])[:12]
        run = Run(self.shared / f"data-{name}", config)
        run.path.mkdir(parents=True, exist_ok=True)
        return encode.prepare(run, progress=progress)

    def partition(self, cell: Cell, progress: Progress | None = None) -> Stage:
        """The clusters of a cell, of which there is one set for all seeds, or for all of one start."""
        config = self.begun(cell).model_copy(update={"seed": self.study.base_run.seed})
        data = self.data()
        asked = config.partition
        known = [data.digest, settings_digest(asked), asked.file, asked.like, config.seed]
        features = self._features(config) if config.grouped_by_start else None
        if features is not None:
            known.append(features.digest)
        run = Run(self.shared / f"partition-{digest(known)[:12]}", config)
        _link(run.data.path, data.path)
        if features is not None:
            _link(run.features.path, features.path)
        return partition.partition(run, progress=progress)

    def _features(self, config: RunConfig) -> Stage:
        """What the start of a cell sees in the samples; it must be trained."""
        data = self.data()
        known = [data.digest, foreign(str(config.expert.init)).digest]
        run = Run(self.shared / f"features-{digest(known)[:12]}", config)
        _link(run.data.path, data.path)
        run.path.mkdir(parents=True, exist_ok=True)
        return graph.of_stage(run, run.features).make()

    def begun(self, cell: Cell) -> RunConfig:
        """The settings of a cell with what its experts begin with in its place."""
        if cell.start is None:
            return cell.config
        begun = _begun(Run(self.shared / cell.start.training, cell.start.config))
        adapter = cell.config.expert.adapter
        named: dict[str, Any] = {"init": str(begun.path)}
        if adapter is not None:
            named = {"adapter": adapter.model_copy(update={"base": str(begun.path)})}
        expert = cell.config.expert.model_copy(update=named)
        return cell.config.model_copy(update={"expert": expert})

    def run(self, cell: Cell) -> Run:
        """The run of a cell, with data and clusters in their places."""
        config = self.begun(cell).model_copy(update={"name": cell.training, "student": None})
        run = Run(self.shared / cell.training, config)
        write_json(run.path / RESOLVED, stamped(config.model_dump(mode="json")))
        _link(run.data.path, self.data().path)
        _link(run.partition.path, self.partition(cell).path)
        return run

    def result(self, cell: Cell) -> Path:
        """Where the numbers of a cell are."""
        return self.shared / cell.training / "cells" / f"{cell.id}.json"

    def picture(self, cell: Cell) -> Path:
        """Where some of its samples can be seen."""
        return self.result(cell).with_suffix(".png")

    def examined(self, cell: Cell) -> Path | None:
        """Where router and experts of a cell's training are looked at by time, if the study asks for it."""
        wanted = cell.config.evaluate.routing
        if not wanted or cell.config.partition.clusters == 1:
            return None
        return self.shared / cell.training / "cells" / f"routing-{wanted}.json"

    def done(self, cell: Cell) -> bool:
        """Whether there is nothing left to do for a cell."""
        examined = self.examined(cell)
        return self.result(cell).is_file() and (examined is None or examined.is_file())

    def cells(self, progress: Progress | None = None) -> list[Cell]:
        """All cells of the study; what they need to know of the data is made first."""
        return unfold(self.study, known(self.data(progress).contents))


def _link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(target.resolve())


def prepare(shop: Workshop, cells: Sequence[Cell], progress: Progress | None = None) -> None:
    """All that several processes will want at the same time: data, partitions, features of the data."""
    early = [cell for cell in cells if not cell.config.grouped_by_start]  # others wait for their start
    for cell in early:
        shop.partition(cell, progress)
    for config in {cell.config.evaluate for cell in cells}:
        first = next(cell for cell in early if cell.config.evaluate == config)
        Judge(shop.run(first), config).ready()


def trainings(shop: Workshop, cells: Sequence[Cell]) -> list[Job]:
    """A job for every distinct training that has a cell without numbers, and for every start before it."""
    wanted = [cell for cell in cells if not shop.done(cell)]
    starts = {cell.start.training: cell.start for cell in wanted if cell.start is not None}
    missing = [start for start in starts.values() if not _begun(shop.run(start)).done]
    jobs: dict[str, Job] = {}
    for cell in (*missing, *wanted):
        if cell.training not in jobs:
            before = jobs.get(cell.start.training) if cell.start is not None else None
            jobs[cell.training] = _job(shop, cell, before, {job.name for job in jobs.values()})
    return list(jobs.values())


def _job(shop: Workshop, cell: Cell, before: Job | None, taken: set[str]) -> Job:
    config, title = cell.config, _title(cell)
    return Job(
        title if title not in taken else f"{title} ({cell.training[:6]})",
        JobSpec(cell.training, shop.study.resolved(), str(shop.root.resolve()), WORKER),
        shop.shared / cell.training,
        steps=_steps(config),
        batch=config.expert_for(0).batch,
        after=frozenset() if before is None else frozenset({before.name}),
        metrics="**/metrics.jsonl",
    )


def _steps(config: RunConfig) -> int:
    """All steps of a training: of one network, or of all experts and their router."""
    if config.start is not None:
        return config.start.steps
    clusters = config.partition.clusters
    return clusters * config.expert.steps + (config.router.steps if clusters > 1 else 0)


def _title(cell: Cell) -> str:
    """What a job is called: what its training has along the axes."""
    words = [
        f"{key.rsplit('.', 1)[-1]} {value}"
        for key, value in cell.values.items()
        if not key.startswith(("sample.", "evaluate.", "partition.clusters"))
    ]
    clusters = cell.config.partition.clusters
    return ", ".join(["monolith" if cell.monolith else f"{clusters} experts", *words])


def work(shop: Workshop, cells: Sequence[Cell], training: str) -> None:
    """Train what these cells share, and judge each of them that has no numbers yet."""
    start = next((cell.start for cell in cells if cell.start and cell.start.training == training), None)
    if start is not None:
        _train_start(shop.run(start))
        for cell in cells:  # here, before several trainings want it at once
            if cell.config.grouped_by_start and cell.start is not None and cell.start.training == training:
                shop.partition(cell)
    mine = [cell for cell in cells if cell.training == training and not shop.done(cell)]
    if not mine:
        return
    run = shop.run(mine[0])
    spent = _Spent(shop.shared / training / "cells" / "trained.json")
    _train(run)
    trained = spent.told()
    judges: dict[EvaluateConfig, Judge] = {}
    facts = known(shop.data().contents)
    examined = shop.examined(mine[0])
    if examined is not None and not examined.is_file():
        options = mine[0].config.evaluate
        ensemble = open_run_model(run, guidances=(), extrapolate=1.0).ensemble
        write_json(examined, routing.examine(ensemble, run, options.routing, resamples=options.bootstrap))
    for cell in mine:
        if shop.result(cell).is_file():
            continue
        config = cell.config.evaluate
        begun = Run(run.path, shop.begun(cell))
        judge = judges.setdefault(config, Judge(begun, config))
        sample = _settled(begun)
        opening = sample.model_dump(include=set(OPENING))
        sampler = open_run_model(run, guidances=(), extrapolations=(), **opening)
        row, drawn = sample_and_judge(sampler, judge, config.num, _sampling(sample))
        row["seconds"] |= trained
        row["guidance"], row["extrapolate"] = sample.guidance, sample.extrapolate
        _show(shop.picture(cell), drawn, judge.real.contents)
        drawn_by = cell.config.model_copy(update={"sample": sample})
        flops = plan.sample_flops(drawn_by, row["experts_per_step"], row["strategy"], facts)
        write_json(shop.result(cell), {**row, "flops_per_sample": flops})


def _settled(run: Run) -> SampleConfig:
    """How a cell is sampled; what it leaves open, guidance or extrapolation, is tried after its trainings."""
    if run.config.sample.chooses:
        stage = run.guidance
        if stage.done and stage.record.made_from != inputs.guidance_from(run):
            stage.clear()  # another cell of the same training was asked for other samples
        graph.of_stage(run, stage).make()
    return run.sampled_with


def _train(run: Run) -> None:
    """Every network of a run that is not trained yet."""
    for index in range(len(run.config.inits()) if run.config.expert.adapter is not None else 0):
        adopt(run, index)  # adapters are sampled with their base
    for node in graph.nodes(run):
        if node.kind.network:
            node.make()
            shutil.rmtree(node.stage.path / "state", ignore_errors=True)


def _begun(run: Run) -> Stage:
    """The network that others begin with: a monolith's one, or the start of a run that has their clusters."""
    return run.start if run.config.start is not None else run.expert(0)


def _train_start(run: Run) -> None:
    """What others begin with, and nothing else of its run."""
    stage = _begun(run)
    graph.of_stage(run, stage).make()
    shutil.rmtree(stage.path / "state", ignore_errors=True)


class _Spent:
    """What a training took in all, however often it was interrupted and taken up again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since = time.monotonic(), time.process_time()

    def told(self) -> dict[str, float]:
        """Seconds of training until now, on the clock and of the processor; they are kept."""
        now = {"train": time.monotonic() - self._since[0], "train_cpu": time.process_time() - self._since[1]}
        before = read_json(self._path) if self._path.is_file() else {}
        whole = {name: seconds + before.get(name, 0.0) for name, seconds in now.items()}
        write_json(self._path, whole)
        return whole


def _show(path: Path, drawn: Samples, contents: SampleFormat) -> None:
    """The first of a cell's samples as a picture; of the same seed, so that cells can be compared."""
    first = slice(0, SHOWN)
    pixels = gallery.to_pixels(drawn.x_0[first], contents)
    with replacing(path) as beside:
        gallery.grid(pixels, drawn.expert[first].tolist(), columns=SHOWN).save(beside, format="PNG")


def _sampling(config: SampleConfig) -> dict[str, Any]:
    return config.model_dump(exclude={"num", "prompts", *OPENING})

"""A run's folder: where its stages live, and the config that it was made with."""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from atoll.config import ExpertConfig, RunConfig, SampleConfig, assignments, merged, validate
from atoll.errors import AtollError, ConfigError, RunError, StaleError
from atoll.runs.chosen import GuidanceContents
from atoll.runs.components import FOLDER, ComponentContents, Members, read_members
from atoll.runs.files import append_line, replacing
from atoll.runs.parsing import read_stamped, stamped
from atoll.runs.records import (
    Alone,
    ClusterContents,
    DataContents,
    DrawnContents,
    FewStepContents,
    NetworkContents,
    PartitionContents,
    ReportContents,
    RouterContents,
    SampledContents,
    StageRecord,
    StartContents,
    StudentContents,
)
from atoll.runs.seen import FeaturesContents
from atoll.runs.shared import SharedNetworkContents
from atoll.runs.stage import DONE, STARTED, Stage

RECIPE, RESOLVED = "run.toml", "resolved.json"
"""What a run says of itself: the recipe as it was written, and all that it means."""
EVALUATION = "evaluation/evaluation.json"
"""What `atoll evaluate` found, in a run's folder."""
CREDIT = "credit/credit.json"
"""What `atoll credit` found, there too."""
EVENTS = "events.jsonl"
"""What happened to a run, a line each."""


class Run:
    """A run's folder and the config that it was made with."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(cls, config: RunConfig, recipe: Path | None = None) -> "Run":
        """Open the run of a recipe under `runs/` (or $ATOLL_RUNS), writing down what it is."""
        run = cls(runs_folder() / config.name, config)
        if recipe is not None:
            _write_changed(run.path / RECIPE, recipe.read_bytes())
        text = json.dumps(stamped(config.model_dump(mode="json")), indent=2, allow_nan=False) + "\n"
        _write_changed(run.path / RESOLVED, text.encode())
        return run

    @classmethod
    @contextlib.contextmanager
    def begun(cls, config: RunConfig, recipe: Path) -> Iterator["Run"]:
        """The run of a recipe for one command; if that is refused, all is again as it was before."""
        folder = runs_folder() / config.name
        before = {name: _bytes(folder / name) for name in (RECIPE, RESOLVED)}
        run = cls.create(config, recipe)
        since = (folder / RESOLVED).stat().st_mtime_ns
        try:
            yield run
        except (AtollError, OSError) as error:
            run._withdraw(before, since)
            if not isinstance(error, StaleError):
                raise
            tree = _tree(before[RESOLVED])
            changed = differences(tree, config.model_dump(mode="json")) if tree else []
            raise StaleError(f"{error} (changed: {'; '.join(changed[:4])})" if changed else error) from None

    def _withdraw(self, before: Mapping[str, bytes | None], since: int) -> None:
        """Put back what the folder said of itself, unless work of this command is in it."""
        records = (path for name in (STARTED, DONE) for path in self.path.rglob(name))
        if any(path.stat().st_mtime_ns >= since for path in records):
            return
        for name, data in before.items():
            if data is None:
                (self.path / name).unlink(missing_ok=True)
            elif data != _bytes(self.path / name):
                with replacing(self.path / name) as beside:
                    beside.write_bytes(data)
        if before[RESOLVED] is None:  # there was no run, so nothing happened to one
            (self.path / EVENTS).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there may be more in it than we know of
            self.path.rmdir()

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open an existing run's folder, or that of a student, which is a run of one expert."""
        if (alone := _alone(path)) is not None:
            return Distilled(path, validate(alone.config, str(path / DONE)))
        if not (path / RESOLVED).is_file():
            raise RunError(f"{path} is not a run (no {RESOLVED}); give a folder that `atoll run` made")
        return cls(path, validate(read_stamped(path / RESOLVED), str(path / RESOLVED)))

    def changed(self, overrides: Iterable[str]) -> "Run":
        """The same folder, asked for other samples or numbers; nothing is written down."""
        changes = assignments(overrides)
        for key in changes.keys() - {"evaluate", "sample", "credit"}:
            raise ConfigError(f"--set {key}: this command has use for [evaluate], [sample] or [credit] alone")
        tree = merged(self.config.model_dump(mode="json"), changes)
        return type(self)(self.path, validate(tree, "--set"))

    def stage(self, *parts: str) -> Stage:
        """One stage of this run."""
        return Stage(self.path.joinpath(*parts))

    @property
    def data(self) -> Stage[DataContents]:
        """All samples at rest."""
        return Stage(self.path / "data", DataContents)

    @property
    def partition(self) -> Stage[PartitionContents]:
        """Centroids, assignment, sizes, and one folder per cluster."""
        return Stage(self.path / "partition", PartitionContents)

    def cluster(self, index: int) -> Stage[ClusterContents]:
        """One cluster's samples: all that its expert may see."""
        return Stage(self.path / "partition" / f"cluster-{index:02d}", ClusterContents)

    @property
    def pool(self) -> Stage[ClusterContents]:
        """All samples together, for a start that comes before the partition."""
        return Stage(self.path / "pool", ClusterContents)

    @property
    def features(self) -> Stage[FeaturesContents]:
        """What the network that experts begin with sees in every sample."""
        return Stage(self.path / "features", FeaturesContents)

    def expert_settings(self, index: int) -> ExpertConfig:
        """The settings of one cluster's expert, with its own number of steps where that goes by shares."""
        settings, cluster = self.config.expert_for(index), self.cluster(index)
        if settings.steps_of == "expert" or not cluster.done:
            return settings
        steps = max(1, round(settings.steps * self.config.partition.clusters * cluster.contents.prior))
        return settings.model_copy(update={"steps": steps, "steps_of": "expert"})

    def expert(self, index: int) -> Stage[NetworkContents]:
        """One expert."""
        return Stage(self.path / "experts" / f"{index:02d}", NetworkContents)

    @property
    def start(self) -> Stage[StartContents]:
        """The network on all data that experts begin with."""
        return Stage(self.path / "start", StartContents)

    @property
    def shared(self) -> Stage[SharedNetworkContents]:
        """The network for the low noise of all clusters."""
        return Stage(self.path / "shared", SharedNetworkContents)

    @property
    def guidance(self) -> Stage[GuidanceContents]:
        """The guidance that was chosen once all experts were trained."""
        return Stage(self.path / "guidance", GuidanceContents)

    @property
    def sampled_with(self) -> SampleConfig:
        """How samples are asked for, with what was chosen once it is."""
        sample = self.config.sample
        chosen = sample.model == "ensemble" and sample.chooses and self.guidance.done
        return self.guidance.contents.settle(sample) if chosen else sample

    @property
    def router(self) -> Stage[RouterContents]:
        """The router."""
        return Stage(self.path / "router", RouterContents)

    @property
    def student(self) -> Stage[StudentContents]:
        """The one model distilled from all experts."""
        return Stage(self.path / "student", StudentContents)

    @property
    def few_step(self) -> Stage[FewStepContents]:
        """The one that needs few steps."""
        return Stage(self.path / "few-step", FewStepContents)

    @property
    def networks(self) -> list[Stage[NetworkContents]]:
        """All networks that may be sampled, finished or not."""
        return [*self.parts, self.asked_router, self.student, self.few_step]

    def component(self, number: int) -> Stage[ComponentContents]:
        """A part that was added."""
        return Stage(self.path / FOLDER / f"{number:02d}", ComponentContents)

    @property
    def members(self) -> Members:
        """Which parts were added, and which serve no longer."""
        return read_members(self.path)

    @property
    def asked_router(self) -> Stage[RouterContents]:
        """The router that the recipe trains, or the one that has learnt added parts too."""
        refreshed = self.members.router
        return self.router if refreshed is None else self.refreshed(refreshed.folder)

    def refreshed(self, folder: str) -> Stage[RouterContents]:
        """A router that has learnt parts that were added."""
        return Stage(self.path / FOLDER / folder, RouterContents)

    @property
    def parts(self) -> list[Stage[NetworkContents]]:
        """All that velocities are mixed of, by number: its own experts, then what was added, there or not."""
        own = self.config.partition.clusters
        added = range(own, self.members.count(own))
        return [*(self.expert(index) for index in range(own)), *(self.component(number) for number in added)]

    def drawn(self, index: int) -> Stage[DrawnContents]:
        """Samples of one expert in place of its cluster's."""
        return Stage(self.path / "drawn" / f"cluster-{index:02d}", DrawnContents)

    @property
    def samples(self) -> Stage[SampledContents]:
        """What was drawn from its networks."""
        return Stage(self.path / "samples", SampledContents)

    @property
    def report(self) -> Stage[ReportContents]:
        """The page."""
        return Stage(self.path / "report", ReportContents)

    def event(self, kind: str, **facts: Any) -> None:
        """Append one line to the run's log of events."""
        append_line(self.path / EVENTS, {"time": time.time(), "event": kind, **facts})


class Distilled(Run):
    """A student as the run of one expert that it is: its record says so, and its run is around it."""

    @property
    def data(self) -> Stage[DataContents]:
        """The samples of the run that it was distilled from."""
        return Stage(self.path.parent / "data", DataContents)

    @property
    def partition(self) -> Stage[PartitionContents]:
        """All samples as one cluster."""
        alone = _alone(self.path)
        assert alone is not None
        return _Known(self.path / "partition", alone.samples)

    def expert(self, index: int) -> Stage[NetworkContents]:
        """The student itself."""
        return Stage(self.path, NetworkContents)


class _Known(Stage[PartitionContents]):
    """A stage that is known by what another one says of it."""

    def __init__(self, path: Path, contents: PartitionContents) -> None:
        super().__init__(path, PartitionContents)
        self._contents = contents

    @property
    def done(self) -> bool:
        return True

    @property
    def record(self) -> StageRecord:
        return StageRecord.of({}, {}, self._contents)


def _alone(path: Path) -> Alone | None:
    """What a student's folder says of itself; None if it is none, or one that was taken out of its run."""
    stage = Stage(path)
    contents = stage.record.contents if stage.done else None
    return contents.alone if isinstance(contents, StudentContents | FewStepContents) else None


def _write_changed(path: Path, data: bytes) -> None:
    """Write a file, unless it says the same already."""
    if _bytes(path) != data:
        with replacing(path) as beside:
            beside.write_bytes(data)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _tree(text: bytes | None) -> dict[str, Any]:
    with contextlib.suppress(ValueError, TypeError):
        return {key: value for key, value in dict(json.loads(text or b"")).items() if key != "version"}
    return {}


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Which keys of a config have other values, with both of them."""
    keys = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            keys += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            keys.append(f"{prefix}{key} was {json.dumps(old)}, is {json.dumps(new)}")
    return keys


def runs_folder() -> Path:
    """Where runs live: $ATOLL_RUNS, or `runs` here."""
    return Path(os.environ.get("ATOLL_RUNS", "runs"))


def made_in(run: Run, number: int) -> Run | None:
    """The run on this machine in which `atoll grow` made an added part; None where there is none."""
    folder = runs_folder() / f"{run.config.name}-{number}-component"
    return Run.open(folder) if (folder / RESOLVED).is_file() else None

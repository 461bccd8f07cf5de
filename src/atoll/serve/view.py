"""A run as one sees it while it is made: read off records and new lines of metrics, and nothing else."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.errors import RunError
from atoll.launch.job import Job, JobSpec, JobStatus
from atoll.launch.remaining import Remaining, Whole, samples_left
from atoll.runs import EVENTS, RESOLVED, Follower, Run, graph
from atoll.runs.graph import Node
from atoll.runs.locks import is_abandoned
from atoll.serve.curves import Curve, number
from atoll.serve.happenings import Happening, Happenings
from atoll.storage.cache import store_address
from atoll.storage.following import Following

SILENT = 60.0
"""Seconds without a line before one wonders; of a slow job, ten times as long as it takes for one."""
AT_WORK = ("training", "silent", "at work")
FRESH = 1.0
"""Seconds for which a look is good enough for everybody; of a store, ten."""


@dataclass(frozen=True)
class StageView:
    """One stage as it is now."""

    name: str
    kind: str
    index: int
    state: str
    """waiting, at work, training, silent, stopped, failed or done."""
    is_job: bool
    step: int = 0
    steps: int = 0
    loss: float | None = None
    norm: float | None = None
    rate: float | None = None
    """Samples a second."""
    seconds: float | None = None
    """Left of this job."""
    gpu_bytes: float | None = None
    heard: float | None = None
    """Seconds since its last line."""
    problem: str = ""

    @property
    def slug(self) -> str:
        """The name where a name must not have spaces."""
        return self.name.replace(" ", "-")


@dataclass(frozen=True)
class RunView:
    """All of a run as it is now."""

    name: str
    state: str
    stages: list[StageView]
    whole: Whole
    happenings: list[Happening]
    events_seen: int
    """Of all events, not only those that are kept."""
    version: int
    """Grows with every line that is read."""
    problem: str = ""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return all(stage.state == "done" for stage in self.stages)

    @property
    def fraction(self) -> float:
        """How much of all steps is done."""
        steps = sum(stage.steps for stage in self.stages)
        done = sum(stage.steps if stage.state == "done" else stage.step for stage in self.stages)
        return done / steps if steps else float(self.finished)


@dataclass
class _Followed(JobStatus):
    """A job whose progress somebody else has read already."""

    line: dict[str, Any] = field(default_factory=dict)

    def progress(self) -> dict[str, Any]:
        return self.line


class View:
    """Looks at one run for everybody who watches it."""

    def __init__(
        self, run: Run, following: Following | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.run, self.following, self._clock = run, following, clock
        self.changed: dict[str, int] = {}
        """The version at which each job's curve last changed."""
        self.curves = {
            node.name: Curve(Follower(node.stage.path / "metrics.jsonl"))
            for node in graph.made(run)
            if node.is_job
        }
        self._happenings = Happenings(run.path / EVENTS)
        self._remaining = Remaining()
        self._version, self._due = 0, float("-inf")
        self._seen: RunView | None = None
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> "View":
        """The view of a run in a folder, or in a store."""
        if (address := store_address(path)) is not None:
            following = Following(address)
            return cls(following.run, following)
        run = Run.open(path)
        if not (run.path / RESOLVED).is_file():
            raise RunError(f"{path} is a student; watch the run that it is part of")
        return cls(run)

    @classmethod
    def of(cls, address: Path) -> "View | None":
        """The view of what is served, if it is a run and not an export or a lone expert."""
        is_run = store_address(address) is not None or (address / RESOLVED).is_file()
        return cls.open(address) if is_run else None

    def look(self) -> RunView:
        """The run as it is now, or as it was a moment ago."""
        with self._lock:
            if self._seen is None or self._clock() >= self._due:
                self._seen = self._look()
                self._due = self._clock() + FRESH * (1 if self.following is None else 10)
            return self._seen

    def _look(self) -> RunView:
        if self.following is not None:
            self.following.refresh()
        for name, curve in self.curves.items():
            if curve.look():
                self._version += 1
                self.changed[name] = self._version
        self._happenings.look()
        stages = [self._stage(node) for node in graph.made(self.run)]
        whole = self._remaining.look([self._followed(one) for one in stages if one.is_job])
        return RunView(
            self.run.config.name,
            _state(stages),
            stages,
            whole,
            self._happenings.newest(),
            self._happenings.count,
            self._version,
            "" if self.following is None else self.following.problem,
        )

    def _stage(self, node: Node) -> StageView:
        state = self._state(node)
        known = node.name, node.kind.name, node.index, state, node.is_job
        problem = self._happenings.problems.get(node.name, "") if state == "failed" else ""
        if not node.is_job:
            return StageView(*known, problem=problem)
        line, steps = self.curves[node.name].newest, node.training.steps if node.training else 0
        at_work, rate = state in AT_WORK, number(line, "samples_per_second")
        status = self._status(node, state)
        return StageView(
            *known,
            steps=steps,
            step=steps if state == "done" else int(line.get("step", 0)),
            loss=number(line, "loss"),
            norm=number(line, "gradient_norm"),
            rate=rate if at_work else None,
            seconds=samples_left(status, line) / rate if at_work and rate else None,
            gpu_bytes=number(line, "gpu_bytes"),
            heard=max(0.0, self._clock() - line["time"]) if at_work and "time" in line else None,
            problem=problem,
        )

    def _state(self, node: Node) -> str:
        if node.stage.done:
            return "done"
        if node.name in self._happenings.problems:
            return "failed"
        if node.stage.started is None:
            return "waiting"
        if self.following is None and is_abandoned(node.stage.path):
            return "stopped"
        if node.training is None:
            return "at work"
        return "silent" if self._is_silent(self.curves[node.name]) else "training"

    def _is_silent(self, curve: Curve) -> bool:
        if "time" not in curve.newest:  # it may still be compiling, or reading its samples
            return False
        return self._clock() - float(curve.newest["time"]) > max(SILENT, 10 * curve.interval)

    def _status(self, node: Node, state: str) -> JobStatus:
        training = node.training
        job = Job(
            node.name,
            JobSpec(node.name, "{}", str(self.run.path)),
            node.stage.path,
            steps=training.steps if training else 0,
            batch=training.batch if training else 0,
            after=frozenset(one.name for one in node.inputs if one.is_job),
        )
        code = {"done": 0, "failed": 1}.get(state)
        at_work = state in AT_WORK
        return _Followed(job, started=at_work, running=at_work, code=code, line=self.curves[node.name].newest)

    def _followed(self, stage: StageView) -> JobStatus:
        return self._status(graph.node(self.run, stage.name), stage.state)

    def since(self, version: int) -> dict[str, dict[str, list[float | None]]]:
        """The curves that have changed after this version."""
        with self._lock:
            names = [name for name, changed in self.changed.items() if changed > version]
            return {name: self.curves[name].columns() for name in names}

    def report(self) -> bytes | None:
        """The page of the finished run."""
        stage = graph.node(self.run, "report").stage
        path = stage.path / "report.html"
        if self.following is not None:
            return self.following.file(stage, path.name)
        return path.read_bytes() if stage.done and path.is_file() else None


def _state(stages: Sequence[StageView]) -> str:
    """The state of the whole run: the most urgent of its stages."""
    states = {stage.state for stage in stages}
    if states == {"done"}:
        return "done"
    order = ("failed", "training", "at work", "silent", "stopped")
    return next((state for state in order if state in states), "waiting")

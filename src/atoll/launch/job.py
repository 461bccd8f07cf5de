"""A job: what is to be made, which never changes, and how far it is, which does."""

import contextlib
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atoll.config import RunConfig, validate
from atoll.errors import EXIT_RUN_AGAIN, AtollError, Interrupted
from atoll.runs import Tail, digest, read_stamped, replacing, stamped

WORKER = "atoll.launch.work"
"""The module that makes one stage of a run."""


@dataclass(frozen=True)
class JobSpec:
    """All that a worker is told: what the run is, as it was resolved, and which stage of it to make."""

    stage: str
    resolved: str
    """The resolved settings, as JSON."""
    folder: str
    """Where the run is; empty where every machine has a folder of its own."""
    worker: str = WORKER

    @classmethod
    def of(cls, stage: str, config: RunConfig, folder: Path | str) -> "JobSpec":
        """One stage of a run."""
        tree = stamped(config.model_dump(mode="json"))
        return cls(stage, json.dumps(tree, sort_keys=True), str(folder))

    @property
    def digest(self) -> str:
        """Of the resolved settings: two jobs of the same stage and digest make the same."""
        return digest(json.loads(self.resolved))

    def at(self, folder: Path) -> "JobSpec":
        """The same job in another folder."""
        return replace(self, folder=str(folder.resolve()))

    def nowhere(self) -> "JobSpec":
        """The same job for machines that each have a folder of their own."""
        return replace(self, folder="")

    def arguments(self) -> list[str]:
        """What a worker is started with; its settings are written down under their digest, for good."""
        path = Path(self.folder) / "resolved" / f"{self.digest[:16]}.json"
        if not path.is_file():
            with replacing(path) as beside:
                beside.write_text(self.resolved, encoding="utf-8")
        return [self.worker, str(path), self.folder, self.stage]


def read_settings(path: Path) -> RunConfig:
    """The settings that a job was started with."""
    return validate(read_stamped(path), str(path))


@dataclass(frozen=True)
class Job:
    """A job as people and engines see it."""

    name: str
    spec: JobSpec
    folder: Path
    """Where its metrics are; its log lies beside."""
    steps: int = 0
    batch: int = 0
    memory: int = 0
    """Bytes, as the plan counts them; 0 where it does not."""
    useful: int = 1
    """CPU threads that pay for its network."""
    gpu: bool = True
    """Whether it has use for a GPU."""
    after: frozenset[str] = frozenset()
    """The jobs that must be done before."""
    is_done: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Asked once nothing has to be waited for: whether there is nothing left to do."""
    saved_step: Callable[[], int] = field(default=lambda: 0, compare=False)
    """Asked as it is started: the step of the state that it goes on from; 0 where there is none."""
    metrics: str = "metrics.jsonl"
    """Which files of its folder tell its progress."""

    @property
    def log(self) -> Path:
        """What the worker said."""
        return self.folder.parent / f"{self.folder.name}.log"


@dataclass
class JobStatus:
    """How far a job is."""

    job: Job
    started: bool = False
    running: bool = False
    """Whether a machine works on it; a job that was started may have to wait for one."""
    code: int | None = None
    """Its exit code, once it has ended."""
    words: str = ""
    """The last that was heard of it."""
    resumed: int = 0
    """The step that it goes on from; 0 for a job that begins."""
    _tails: dict[Path, Tail] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The job's."""
        return self.job.name

    @property
    def state(self) -> str:
        """In a word."""
        if self.code is not None:
            return "done" if self.code == 0 else "failed"
        return "training" if self.running else "waiting"

    def begin(self) -> None:
        """Note that it is given to an engine, and what it goes on from."""
        self.started, self.resumed = True, self.job.saved_step()

    def progress(self) -> dict[str, Any]:
        """The newest line of its metrics, with the steps of all of them."""
        with contextlib.suppress(FileNotFoundError):  # a folder that went while it was looked at; next time
            for path in self.job.folder.glob(self.job.metrics):
                self._tails.setdefault(path, Tail(path))
        last = [line for tail in self._tails.values() if (line := tail.latest())]
        if not last:
            return {}
        newest = max(last, key=lambda line: line.get("time", 0.0))
        return {**newest, "step": sum(line["step"] for line in last)}

    def last_words(self) -> str:
        """What the job said last, and where it said the rest."""
        if self.words:
            return self.words
        if self.code is not None and self.code < 0:
            return f"killed by {signal.Signals(-self.code).name} (log: {self.job.log})"
        return f"{last_line(self.job.log) or f'exit code {self.code}'} (log: {self.job.log})"


def last_line(log: Path) -> str:
    """The last line of a log, as a message."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    return lines[-1].removeprefix("atoll: ") if lines else ""


def report(statuses: list[JobStatus]) -> None:
    """An error where a job has failed; a stop where jobs have saved and want to be run again."""
    failed = [status for status in statuses if status.code not in (0, None)]
    if failed and all(status.code == EXIT_RUN_AGAIN for status in failed):
        names = ", ".join(status.name for status in failed)
        raise Interrupted(f"{names} stopped and saved; run the same command again")
    if failed:
        raise AtollError("; ".join(f"{status.name} failed: {status.last_words()}" for status in failed))

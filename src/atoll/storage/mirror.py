"""A run in a store and its folder here: stages are downloaded and checked, and uploaded, `done.json` last.

In the store a file's name holds the beginning of its sha256 and lies in the folder of its attempt, so that
two machines that make the same stage never write over each other's files: the one whose `done.json` is there
first has made it.
"""

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from atoll.errors import StaleError, StorageError
from atoll.runs import (
    DONE,
    EVENTS,
    RECIPE,
    RESOLVED,
    STARTED,
    Run,
    Stage,
    append_line,
    edges,
    file_digest,
    graph,
    previews,
    read_json,
    read_lines,
    replacing,
    safe_name,
)
from atoll.runs.parsing import validated
from atoll.runs.records import (
    FewStepContents,
    FileName,
    Frozen,
    NetworkContents,
    StageRecord,
    StudentContents,
    parse_record,
)
from atoll.storage.clock import CLOCK, Clock
from atoll.storage.leases import LeaseLost, StoreLeases
from atoll.storage.pointer import Pointer, newest, pointer_name
from atoll.storage.progress import (
    METRICS,
    STATE,
    Attempt,
    attempt_here,
    download_metrics,
    download_previews,
    keyed,
    mark,
    new_attempt,
    walk,
)
from atoll.storage.store import PATIENCE, open_store

logger = logging.getLogger(__name__)

PLAIN = (RECIPE, RESOLVED)
MARK = "store.json"
"""By it a folder is known to be a run in a store, whose files have other names than in a run's own folder."""
SCHEMA = 1


class Upload(Frozen):
    """A finished stage as the store says it: whose attempt it was, where its files are, and its record."""

    attempt: FileName
    token: int
    metrics: FileName | None
    folder: FileName
    record: dict[str, JsonValue]


class Mirror:
    """A run that lives in a store, and the folder of this machine that has what is needed of it."""

    def __init__(self, run: Run, address: str, patience: float = PATIENCE, clock: Clock = CLOCK) -> None:
        """The run at this very address, whatever its recipe calls it."""
        self.run = run
        self.store = open_store(address, patience, self.event, clock)
        self.leases = StoreLeases(self.store, run.config.launch.lease, clock)
        self.who = uuid.uuid4().hex[:12]
        self._events: list[dict[str, Any]] = []
        self._uploaded_events = 0

    @classmethod
    def of(cls, run: Run) -> "Mirror":
        """The mirror that the run's recipe asks for."""
        launch = run.config.launch
        return cls(run, f"{launch.store.rstrip('/')}/{run.config.name}", launch.patience)

    def event(self, kind: str, /, **facts: Any) -> None:
        """Write an event down here, and remember it for the store."""
        line = {"time": time.time(), "event": kind, "by": self.who, **facts}
        self._events.append(line)
        self.run.path.mkdir(parents=True, exist_ok=True)
        append_line(self.run.path / EVENTS, line)

    def open(self, *, lead: bool) -> None:
        """See that the store can be used, and say there what the run is; only a leader says it anew."""
        self.store.check()
        if not self.store.create(MARK, json.dumps({"schema": SCHEMA}).encode()):
            raise StorageError(
                f"{self.store.address} was written by another version of atoll; give the recipe another name"
            )
        for name in PLAIN:
            path = self.run.path / name
            if path.is_file():
                (self.store.write if lead else self.store.create)(name, path.read_bytes())

    def name(self, stage: Stage) -> str:
        """A stage's folder in the store."""
        return stage.path.relative_to(self.run.path).as_posix()

    def is_done(self, stage: Stage) -> bool:
        """Whether the stage is finished in the store."""
        return self.store.exists(f"{self.name(stage)}/{DONE}")

    def _done(self, stage: Stage) -> tuple[Upload, StageRecord] | None:
        """What the store says of a finished stage."""
        name = f"{self.name(stage)}/{DONE}"
        tree = self.store.read_json(name)
        if tree is None:
            return None
        where = f"{self.store.address}/{name}"
        upload = validated(Upload, tree, where)
        return upload, parse_record(upload.record, where)

    def download_record(self, stage: Stage) -> bool:
        """`done.json` alone, which says what a stage is; False if it is not finished."""
        done = self._done(stage)
        if done is None:
            return False
        upload, record = done
        if isinstance(record.contents, StudentContents | FewStepContents):
            self._download_lessons(stage)
        if not stage.done or read_json(stage.path / DONE) != record.facts():
            stage.write(record)
        if attempt_here(stage) != upload.attempt:
            mark(stage, upload.attempt)
        (stage.path / STARTED).unlink(missing_ok=True)
        return True

    def _download_lessons(self, stage: Stage) -> None:
        """The records of a student's lessons before its last."""
        name = self.name(stage)
        for key in self.store.names(name):
            lesson = Stage((self.run.path / safe_name(key)).parent)
            if Path(key).name == DONE and key != f"{name}/{DONE}" and (done := self._done(lesson)):
                lesson.write(done[1])

    def download(self, stage: Stage, wanted: Callable[[str], bool] = lambda name: True) -> bool:
        """A finished stage, each file checked; False if it is not finished."""
        done = self._done(stage)
        if done is None:
            return False
        upload, record = done
        for file, sha256 in record.files.items():
            if wanted(file) and not _same(stage.path / file, sha256):
                self.store.download(f"{upload.folder}/{keyed(file, sha256)}", stage.path / file, sha256)
        download_metrics(self.store, upload.metrics, stage)
        if isinstance(record.contents, NetworkContents):
            download_previews(self.store, upload.folder, stage)
        return self.download_record(stage)

    def download_networks(self) -> None:
        """All that sampling needs: everything trained, and what is said of samples, but not the samples."""
        bases = edges.bases(self.run.config)
        networks = (one.stage for one in graph.nodes(self.run) if one.kind.network or one.name in bases)
        for stage in (self.run.partition, *networks):
            self.download(stage, lambda name: not name.endswith(".parquet"))

    def download_samples(self) -> None:
        """The samples at rest, of all clusters, against which a run is evaluated."""
        clusters = (self.run.cluster(index) for index in range(self.run.config.partition.clusters))
        for stage in (self.run.data, self.run.partition, *clusters):
            self.download(stage)

    def download_metrics(self, stage: Stage) -> None:
        """What the stage has measured so far."""
        pointer = newest(self.store, self.name(stage))
        download_metrics(self.store, pointer.metrics if pointer else None, stage)

    def metrics_name(self, stage: Stage) -> str | None:
        """Where the store has what a stage has measured, finished or not."""
        done = self._done(stage)
        if done is not None:
            return done[0].metrics
        pointer = newest(self.store, self.name(stage))
        return None if pointer is None else pointer.metrics

    def saved_step(self, stage: Stage) -> int:
        """Of the newest state of training that the store has of a stage; 0 where there is none."""
        pointer = newest(self.store, self.name(stage))
        return pointer.states[0].step if pointer and pointer.states else 0

    def attempt(self, stage: Stage, token: int) -> Attempt:
        """Go on with an unfinished stage, under a lease of its name with this token."""
        return Attempt.begin(self.store, stage, self.name(stage), token)

    def join(self, stage: Stage) -> Attempt:
        """Help with an unfinished stage that another process of the run has begun."""
        return Attempt.join(self.store, stage, self.name(stage))

    def upload(self, stage: Stage, attempt: Attempt | None = None) -> None:
        """A finished stage: inner stages, then files, then `done.json`, which only one machine can write.

        `LeaseLost` if the stage was started over meanwhile; if another machine has finished it, its result
        counts.
        """
        name, of = self.name(stage), _attempt_of(stage)
        begun = self._check(name, of)
        about: dict[str, Any] = {"attempt": of, "token": 0, "metrics": None}
        if attempt is not None:
            attempt.upload_state()
            about |= {"token": attempt.pointer.token, "metrics": attempt.pointer.metrics}
        self._upload_inside(stage, f"{name}/{of}", about, name if begun else None)
        try:
            self._check(name, of)
        except LeaseLost:  # what was made for nothing is taken back
            theirs = self._done(stage)
            if theirs is None or theirs[0].attempt == of:
                self.store.delete([f"{name}/{DONE}"])
            raise
        self._tidy(stage, f"{name}/{of}")

    def _check(self, name: str, attempt: str) -> bool:
        """Whether a stage was begun under a lease; `LeaseLost` if it was started over since then."""
        pointer = newest(self.store, name)
        if pointer is not None and pointer.attempt != attempt:
            raise LeaseLost(f"{name} was started over elsewhere; run the same command again to go on with it")
        return pointer is not None

    def _upload_inside(self, stage: Stage, folder: str, about: dict[str, Any], begun: str | None) -> None:
        """One stage's files to a folder of the store, inner stages first, and then its `done.json`."""
        for inner in _inner(stage):
            self._upload_inside(inner, f"{folder}/{inner.path.name}", {**about, "metrics": None}, begun)
        name, record = self.name(stage), stage.record
        for file, sha256 in record.files.items():
            self.store.upload(stage.path / file, f"{folder}/{keyed(file, sha256)}")
        for _, path in previews.listed(stage.path):  # which no record names
            file = path.relative_to(stage.path).as_posix()
            self.store.upload(path, f"{folder}/{keyed(file, file_digest(path))}")
        metrics = about["metrics"] or self._upload_metrics(stage, folder)
        upload = Upload(**{**about, "folder": folder, "metrics": metrics, "record": record.facts()})
        if self.store.create(f"{name}/{DONE}", upload.model_dump_json().encode()):
            self.event("uploaded", stage=name)
        else:
            self._give_way(stage, upload, begun)

    def _upload_metrics(self, stage: Stage, folder: str) -> str | None:
        path = stage.path / METRICS
        if not path.is_file():
            return None
        name = f"{folder}/{keyed(METRICS, file_digest(path))}"
        self.store.upload(path, name)
        return name

    def _give_way(self, stage: Stage, ours: Upload, begun: str | None) -> None:
        """Another machine was first: its result counts, unless it is one of an earlier attempt."""
        name, theirs = self.name(stage), self._done(stage)
        if theirs is None or (begun is not None and theirs[0].attempt != ours.attempt):
            if begun is not None:
                self._check(begun, ours.attempt)
            self.store.write(f"{name}/{DONE}", ours.model_dump_json().encode())
        elif theirs[1].made_from != stage.record.made_from:
            raise StaleError(
                f"{self.store.address}/{name} was made from other inputs; "
                "add --start-over to replace it, or give the recipe another name"
            )
        elif theirs[1].files != stage.record.files:
            self.event("gave_way", stage=name)
            self.download(stage)

    def _tidy(self, stage: Stage, folder: str) -> None:
        """Remove what only mattered while the stage was unfinished."""
        kept = {f"{folder}/{keyed(file, sha256)}" for file, sha256 in stage.record.files.items()}
        others = (
            STATE,
            "metrics.",
            f"{previews.FOLDER}/",
            *(f"{inner.path.name}/" for inner in _inner(stage)),
        )
        whole = tuple(f"{folder}/{one}" for one in others)
        names = self.store.names(folder)
        self.store.delete(name for name in names if name not in kept and not name.startswith(whole))

    def clear(self, stage: Stage) -> None:
        """Throw a stage away, there and here: a new attempt, of which no machine has anything.

        Whoever is at work on it loses its lease, and what it still uploads does not count.
        """
        name = self.name(stage)
        token = self.leases.revoke(name)
        pointer = Pointer(attempt=new_attempt(), token=token)
        self.store.write(pointer_name(name, token), pointer.encoded())
        names = sorted(self.store.names(name), key=lambda one: not one.endswith(f"/{DONE}"))
        self.store.delete(one for one in names if one != pointer_name(name, token))
        stage.clear()

    def upload_folder(self, folder: Path) -> None:
        """A folder that is no stage, as samples or a report: every file under its own name."""
        name = folder.relative_to(self.run.path).as_posix()
        for path in walk(folder):
            self.store.write(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def upload_events(self) -> None:
        """All events of this process; every process has a file of its own, since a store cannot append."""
        if len(self._events) == self._uploaded_events:
            return
        events = list(self._events)
        self.store.write(f"events/{self.who}.jsonl", _lines(events))
        self._uploaded_events = len(events)

    def gather_events(self) -> None:
        """The events of all processes of the run in one `events.jsonl`, here and in the store."""
        self.upload_events()
        self.store.write(EVENTS, self.download_events())

    def download_events(self) -> bytes:
        """The events of all processes of the run, in one `events.jsonl` here."""
        events: list[dict[str, Any]] = []
        for name in (*self.store.names("events"), EVENTS):
            raw = self.store.read(name) or b""
            with contextlib.suppress(ValueError):
                events += [json.loads(text) for text in raw.splitlines()]
        events += read_lines(self.run.path / EVENTS)  # last: what went wrong above is there by now
        unique = {json.dumps(line, sort_keys=True): line for line in events}
        raw = _lines(sorted(unique.values(), key=lambda line: line["time"]))
        if not (self.run.path / EVENTS).is_file() or (self.run.path / EVENTS).read_bytes() != raw:
            with replacing(self.run.path / EVENTS) as beside:
                beside.write_bytes(raw)
        return raw


def _attempt_of(stage: Stage) -> str:
    """The attempt that a finished stage is of; one that was never in a store is named by what is in it."""
    return attempt_here(stage) or stage.record.digest[:12]


def _inner(stage: Stage) -> list[Stage]:
    """Finished stages inside of a stage; what is only a link, as a student's to the data, is another's."""
    folders = sorted(path.parent for path in stage.path.glob(f"*/{DONE}"))
    return [Stage(folder) for folder in folders if not folder.is_symlink()]


def _lines(values: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def _same(path: Path, sha256: str) -> bool:
    return path.is_file() and file_digest(path) == sha256

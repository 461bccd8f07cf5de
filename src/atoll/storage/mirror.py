"""A run in a store and its folder here: stages are fetched and checked, and handed in, `done.json` last.

In the store a file's name holds the beginning of its sha256, so that two machines that make the same stage
never write over each other's files: the one whose `done.json` is there first has made it.
"""

import contextlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from atoll.config import RunConfig
from atoll.errors import RunError, StaleError
from atoll.runs import (
    DONE,
    RECIPE,
    RESOLVED,
    STARTED,
    Run,
    Stage,
    append_line,
    file_digest,
    read_json,
    read_lines,
    replacing,
)
from atoll.storage.objects import Store, walk

logger = logging.getLogger(__name__)

METRICS, STATE, LATEST, DECISIONS = "metrics.jsonl", "state", "latest.json", "decisions.json"
EVENTS = "events.jsonl"
PLAIN = (RECIPE, RESOLVED)
HASH = 16
"""Hexadecimal digits of a file's sha256 in its name."""

_KEYED = re.compile(rf"(?P<stem>.+)\.(?P<sha>[0-9a-f]{{{HASH}}})(?P<suffix>\.[A-Za-z0-9]+)$")


def keyed(name: str, sha256: str) -> str:
    """The name of a file with these contents in the store: weights.<hash>.safetensors."""
    path = Path(name)
    return str(path.with_name(f"{path.stem}.{sha256[:HASH]}{path.suffix}"))


class Mirror:
    """A run that lives in a store, and the folder of this machine that has what is needed of it."""

    def __init__(self, run: Run, address: str, patience: float) -> None:
        self.run = run
        self.store = Store(f"{address.rstrip('/')}/{run.config.name}", patience, self.event)
        self.who = uuid.uuid4().hex[:12]
        self._said: list[dict[str, Any]] = []
        self._handed_events = 0
        self._sent: dict[Path, tuple[int, int]] = {}

    @classmethod
    def of(cls, run: Run) -> "Mirror":
        """The mirror that the run's recipe asks for."""
        return cls(run, run.config.launch.store, run.config.launch.patience)

    def event(self, kind: str, **facts: Any) -> None:
        """Write an event down here, and remember it for the store."""
        line = {"time": time.time(), "event": kind, "by": self.who, **facts}
        self._said.append(line)
        self.run.path.mkdir(parents=True, exist_ok=True)
        append_line(self.run.path / EVENTS, line)

    def open(self, *, lead: bool) -> None:
        """See that the store can be used, and say there what the run is; only a leader says it anew."""
        self.store.check()
        for name in PLAIN:
            path = self.run.path / name
            if path.is_file():
                (self.store.write if lead else self.store.create)(name, path.read_bytes())

    def name(self, stage: Stage) -> str:
        """A stage's folder in the store."""
        return stage.path.relative_to(self.run.path).as_posix()

    def is_done(self, stage: Stage) -> bool:
        """Whether the stage is finished in the store."""
        return self.store.has(f"{self.name(stage)}/{DONE}")

    def fetch_record(self, stage: Stage) -> bool:
        """`done.json` alone, which says what a stage is; False if it is not finished."""
        record = self.store.read_json(f"{self.name(stage)}/{DONE}")
        if record is None:
            return False
        if "taught_by" in record["contents"]:
            self._fetch_own_run(stage)
        if not stage.done or read_json(stage.path / DONE) != record:
            _write(stage.path / DONE, record)
        (stage.path / STARTED).unlink(missing_ok=True)
        return True

    def _fetch_own_run(self, stage: Stage) -> None:
        """A student's folder is a run itself: what says so, and the records of lessons before its last."""
        name = self.name(stage)
        for key in self.store.names(name):
            if Path(key).name in (DONE, RESOLVED) and key != f"{name}/{DONE}":
                _write(self.run.path / key, self.store.read_json(key))

    def fetch(self, stage: Stage, wanted: Callable[[str], bool] = lambda name: True) -> bool:
        """A finished stage, each file checked; False if it is not finished."""
        name = self.name(stage)
        record = self.store.read_json(f"{name}/{DONE}")
        if record is None:
            return False
        for file, sha256 in record["files"].items():
            if wanted(file) and not _same(stage.path / file, sha256):
                self.store.pull(f"{name}/{keyed(file, sha256)}", stage.path / file, sha256)
        self.fetch_metrics(stage)
        return self.fetch_record(stage)

    def fetch_networks(self) -> None:
        """All that sampling needs: everything trained, and what is said of samples, but not the samples."""
        for stage in (self.run.partition, *trained(self.run)):
            self.fetch(stage, lambda name: not name.endswith(".parquet"))

    def fetch_metrics(self, stage: Stage) -> None:
        """What the stage has measured so far."""
        raw = self.store.read(f"{self.name(stage)}/{METRICS}")
        if raw is not None and len(raw) > _size(stage.path / METRICS):
            _write_bytes(stage.path / METRICS, raw)

    def fetch_progress(self, stage: Stage, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """What an unfinished stage has so far: finished files, and the newest state of training."""
        name = self.name(stage)
        if not stage.done and (started := self.store.read_json(f"{name}/{STARTED}")) is not None:
            _write(stage.path / STARTED, started)
        self._fetch_state(stage)
        newest: dict[str, tuple[float, str]] = {}
        for key, (changed, _) in self.store.names(name).items():
            found = _KEYED.match(key.removeprefix(f"{name}/"))
            if found and not found["stem"].startswith(f"{STATE}/"):
                file = found["stem"] + found["suffix"]
                newest[file] = max(newest.get(file, (0.0, "")), (changed, found["sha"]))
        for file in sorted(newest):  # what others are the sign of comes first, as where they were written
            if wanted(file) and not (stage.path / file).is_file():
                self.store.pull(f"{name}/{keyed(file, newest[file][1])}", stage.path / file, newest[file][1])

    def _fetch_state(self, stage: Stage) -> None:
        name, folder = f"{self.name(stage)}/{STATE}", stage.path / STATE
        pointer = self.store.read_json(f"{name}/{LATEST}")
        if pointer is None:
            return
        here = read_json(folder / LATEST)["step"] if (folder / LATEST).is_file() else -1
        if here >= pointer["step"]:
            return
        for entry in (pointer, *pointer.get("older", [])):
            self.store.pull(
                f"{name}/{keyed(entry['file'], entry['sha256'])}", folder / entry["file"], entry["sha256"]
            )
        decisions = self.store.read_json(f"{name}/{DECISIONS}")
        if decisions is not None:
            _write(folder / DECISIONS, decisions)
        self.fetch_metrics(stage)
        _write(folder / LATEST, pointer)
        self._sent[folder / LATEST] = _mark(folder / LATEST)
        logger.info("going on from step %d", pointer["step"])

    def hand_in_progress(self, stage: Stage) -> None:
        """What an unfinished stage has so far, so that another machine can go on with it."""
        if (stage.path / STARTED).is_file():
            self._send_small(stage, STARTED)
        first = set(self._loose(stage))
        for file in sorted(self._loose(stage)):
            # What the first look found is whole, and so is all that was written before it.
            if file in first or any(file < other for other in first):
                self._send(stage, file)
        self._hand_in_state(stage)
        self._send_small(stage, METRICS)
        self.hand_in_events()

    def _loose(self, stage: Stage) -> Iterator[str]:
        """Files of a stage that are not about its progress."""
        for path in walk(stage.path):
            name = path.relative_to(stage.path)
            if name.parts[0] != STATE and name.name not in (DONE, STARTED, METRICS, RESOLVED):
                yield name.as_posix()

    def _hand_in_state(self, stage: Stage) -> None:
        folder = stage.path / STATE
        if not (folder / LATEST).is_file() or self._is_sent(folder / LATEST):
            return
        name = f"{self.name(stage)}/{STATE}"
        with tempfile.TemporaryDirectory(dir=folder, prefix=".outgoing-") as outgoing:
            mark = _mark(folder / LATEST)
            pointer = read_json(folder / LATEST)
            entries = [pointer, *pointer.get("older", [])]
            for entry in entries:
                try:  # a second name, since training may remove the first one meanwhile
                    os.link(folder / entry["file"], Path(outgoing) / entry["file"])
                except FileNotFoundError:
                    return
            for entry in entries:
                self.store.push(
                    Path(outgoing) / entry["file"], f"{name}/{keyed(entry['file'], entry['sha256'])}"
                )
        if (folder / DECISIONS).is_file():
            self.store.write(f"{name}/{DECISIONS}", (folder / DECISIONS).read_bytes())
        self.store.write(f"{name}/{LATEST}", json.dumps(pointer).encode())
        self._sent[folder / LATEST] = mark
        kept = {f"{name}/{keyed(entry['file'], entry['sha256'])}" for entry in entries}
        old = [key for key in self.store.names(name) if _KEYED.match(key) and key not in kept]
        self.store.delete(old)
        self.event("checkpoint", stage=self.name(stage), step=pointer["step"])

    def hand_in(self, stage: Stage) -> None:
        """A finished stage: inner stages, then files, then `done.json`, which only one machine can write."""
        for inner in _inner(stage):
            self.hand_in(inner)
        name, record = self.name(stage), stage.record
        for file, sha256 in record["files"].items():
            self.store.push(stage.path / file, f"{name}/{keyed(file, sha256)}")
        self._hand_in_state(stage)
        for file in (METRICS, RESOLVED):
            self._send_small(stage, file)
        if not self.store.create(f"{name}/{DONE}", (stage.path / DONE).read_bytes()):
            self._give_way(stage)
            return
        self._tidy(stage, record)
        self.event("handed_in", stage=name)

    def _give_way(self, stage: Stage) -> None:
        """Another machine was first: its result counts."""
        theirs = self.store.read_json(f"{self.name(stage)}/{DONE}")
        ours = stage.record
        if theirs["made_from"] != ours["made_from"]:
            raise StaleError(
                f"{self.store.address}/{self.name(stage)} was made from other inputs; "
                "add --start-over to replace it, or give the recipe another name"
            )
        if theirs["files"] != ours["files"]:
            self.event("gave_way", stage=self.name(stage))
            self.fetch(stage)

    def _tidy(self, stage: Stage, record: dict[str, Any]) -> None:
        """Remove what only mattered while the stage was unfinished."""
        name = self.name(stage)
        kept = {f"{name}/{keyed(file, sha256)}" for file, sha256 in record["files"].items()}
        inner = tuple(f"{self.name(one)}/" for one in _inner(stage))
        left = [
            key
            for key in self.store.names(name)
            if _KEYED.match(key) and key not in kept and not key.startswith((f"{name}/{STATE}/", *inner))
        ]
        self.store.delete([*left, f"{name}/{STARTED}"])

    def clear(self, stage: Stage) -> None:
        """Throw a stage away, there and here."""
        names = sorted(self.store.names(self.name(stage)), key=lambda name: not name.endswith(DONE))
        self.store.delete(names)
        shutil.rmtree(stage.path, ignore_errors=True)
        self._sent = {path: mark for path, mark in self._sent.items() if stage.path not in path.parents}

    def hand_in_folder(self, folder: Path) -> None:
        """A folder that is no stage, as samples or a report: every file under its own name."""
        name = folder.relative_to(self.run.path).as_posix()
        for path in walk(folder):
            self.store.write(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def hand_in_events(self) -> None:
        """All events of this process; every process has a file of its own, since a store cannot append."""
        if len(self._said) == self._handed_events:
            return
        said = list(self._said)
        self.store.write(f"events/{self.who}.jsonl", _lines(said))
        self._handed_events = len(said)

    def gather_events(self) -> None:
        """The events of all processes of the run in one `events.jsonl`, here and in the store."""
        self.hand_in_events()
        found: list[dict[str, Any]] = []
        for name in self.store.names("events"):
            raw = self.store.read(name) or b""
            with contextlib.suppress(ValueError):
                found += [json.loads(text) for text in raw.splitlines()]
        found += read_lines(self.run.path / EVENTS)  # last: what went wrong above is there by now
        unique = {json.dumps(line, sort_keys=True): line for line in found}
        raw = _lines(sorted(unique.values(), key=lambda line: line["time"]))
        _write_bytes(self.run.path / EVENTS, raw)
        self.store.write(EVENTS, raw)

    def _send(self, stage: Stage, file: str) -> None:
        path = stage.path / file
        with contextlib.suppress(FileNotFoundError):
            if not self._is_sent(path):
                mark = _mark(path)
                self.store.push(path, f"{self.name(stage)}/{keyed(file, file_digest(path))}")
                self._sent[path] = mark

    def _send_small(self, stage: Stage, file: str) -> None:
        path = stage.path / file
        if path.is_file() and not self._is_sent(path):
            mark = _mark(path)
            self.store.write(f"{self.name(stage)}/{file}", path.read_bytes())
            self._sent[path] = mark

    def _is_sent(self, path: Path) -> bool:
        return self._sent.get(path) == _mark(path)


def _inner(stage: Stage) -> list[Stage]:
    """Finished stages inside of a stage; what is only a link, as a student's to the data, is another's."""
    folders = sorted(path.parent for path in stage.path.glob(f"*/{DONE}"))
    return [Stage(folder) for folder in folders if not folder.is_symlink()]


def trained(run: Run) -> list[Stage]:
    """All that a run trains."""
    experts = [run.expert(index) for index in range(run.config.partition.clusters)]
    return [*experts, run.router, *([] if run.config.student is None else [run.student, run.few_step])]


def fetch_run(address: str, folder: Path) -> Path:
    """What sampling needs of a finished run in a store, without its samples at rest; its folder here."""
    top, _, name = address.rstrip("/").rpartition("/")
    store = Store(address)
    tree = store.read_json(RESOLVED)
    if tree is None:
        raise RunError(
            f"{address} is not a run (no resolved.json); give an address that `atoll run` wrote to"
        )
    run = Run(folder / name, RunConfig.model_validate(tree))
    _write(run.path / RESOLVED, tree)
    mirror = Mirror(run, top, run.config.launch.patience)
    mirror.fetch_networks()
    return run.path


def _lines(values: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def _write(path: Path, value: Any) -> None:
    _write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def _write_bytes(path: Path, raw: bytes) -> None:
    with replacing(path) as beside:
        beside.write_bytes(raw)


def _same(path: Path, sha256: str) -> bool:
    return path.is_file() and file_digest(path) == sha256


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _mark(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size

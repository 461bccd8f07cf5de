"""An unfinished stage between machines: who may go on with it, from which state, and what nobody may touch.

Every start of a stage is an *attempt* with an id of its own; a stage that is started over is a new one, and
what is left of an earlier one, here or there, is never gone on with. Within an attempt every holder of the
lease writes a pointer of its own, named by its fencing token; the highest token counts. States belong to the
token that wrote them. So a holder that lost its lease can neither move a pointer back nor remove what its
heir goes on from:

    experts/03/progress/00000002.json                                   the pointer of the second holder
    experts/03/<attempt>/state/00000002/step-00000300.<sha256>.safetensors
    experts/03/<attempt>/weights.<sha256>.safetensors                   finished files, of whichever holder
"""

import contextlib
import logging
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from atoll.runs import (
    DONE,
    RESOLVED,
    STARTED,
    Stage,
    file_digest,
    previews,
    read_json,
    replacing,
    safe_name,
    write_json,
)
from atoll.storage.leases import LeaseLost
from atoll.storage.pointer import Pointer, State, newest, pointer_name, pointers
from atoll.storage.store import Store

logger = logging.getLogger(__name__)

METRICS, STATE, LATEST, DECISIONS = "metrics.jsonl", "state", "latest.json", "decisions.json"
ATTEMPT = ".attempt.json"
"""Says in a stage's folder here of which attempt it is."""
HASH = 16
"""Hexadecimal digits of a file's sha256 in its name."""
_KEYED = re.compile(rf"(?P<stem>.+)\.(?P<sha>[0-9a-f]{{{HASH}}})(?P<suffix>\.[A-Za-z0-9]+)$")


def keyed(name: str, sha256: str) -> str:
    """The name of a file with these contents in a store: weights.<hash>.safetensors."""
    path = Path(name)
    return str(path.with_name(f"{path.stem}.{sha256[:HASH]}{path.suffix}"))


def new_attempt() -> str:
    """An id that nobody else has."""
    return uuid.uuid4().hex[:12]


def attempt_here(stage: Stage) -> str | None:
    """Of which attempt the stage's folder is; None if it was never in a store."""
    path = stage.path / ATTEMPT
    return str(read_json(path)["attempt"]) if path.is_file() else None


@dataclass
class Attempt:
    """The turn of one holder of a lease at an unfinished stage, between the store and the folder here."""

    store: Store
    stage: Stage
    name: str
    """The stage's folder in the store."""
    pointer: Pointer
    _sent: dict[Path, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def begin(cls, store: Store, stage: Stage, name: str, token: int) -> "Attempt":
        """Take over where the last holder was; what is here of an earlier attempt is removed."""
        before = newest(store, name)
        if before is not None and before.token > token:
            raise LeaseLost(f"{name} is in other hands; run the same command again to wait for it")
        if before is None:
            before = Pointer(attempt=attempt_here(stage) or new_attempt(), token=token)
            mark(stage, before.attempt)  # what was made here without a store is gone on with
        turn = cls._of(store, stage, name, before.changed(token=token))
        turn._point(turn.pointer)
        return turn

    @classmethod
    def join(cls, store: Store, stage: Stage, name: str) -> "Attempt":
        """Help the holder of the lease: finished files can be uploaded, nothing else."""
        before = newest(store, name)
        if before is None:
            raise LeaseLost(f"{name} was not begun; run the same command again")
        return cls._of(store, stage, name, before)

    @classmethod
    def _of(cls, store: Store, stage: Stage, name: str, pointer: Pointer) -> "Attempt":
        if stage.path.exists() and attempt_here(stage) != pointer.attempt:
            logger.info("%s: what is here is of an earlier attempt, and is removed", stage.path)
            stage.clear()
        mark(stage, pointer.attempt)
        return cls(store, stage, name, pointer)

    @property
    def folder(self) -> str:
        """Where the files of the attempt are in the store."""
        return f"{self.name}/{self.pointer.attempt}"

    def check(self) -> None:
        """`LeaseLost` if another machine has taken over, or the stage was started over."""
        latest = max(self.store.names(f"{self.name}/progress"), default="")
        if latest > pointer_name(self.name, self.pointer.token):
            raise LeaseLost(f"{self.name} is in other hands; run the same command again to wait for it")

    def download(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """What the stage has so far: finished files, and the newest state of training."""
        if not self.stage.done and self.pointer.started is not None:
            write_json(self.stage.path / STARTED, self.pointer.started)
        self._download_state()
        self._download_files(wanted)

    def _download_files(self, wanted: Callable[[str], bool]) -> None:
        matches = (
            _KEYED.match(name.removeprefix(f"{self.folder}/")) for name in self.store.names(self.folder)
        )
        # Of two that differ, though made from the same, any will do: all machines take the same one.
        files = {safe_name(one["stem"] + one["suffix"]): one["sha"] for one in matches if one is not None}
        for file in sorted(files):  # what others are the sign of comes first, as where they were written
            if not file.startswith(f"{STATE}/") and wanted(file) and not (self.stage.path / file).is_file():
                self.store.download(
                    f"{self.folder}/{keyed(file, files[file])}", self.stage.path / file, files[file]
                )

    def _download_state(self) -> None:
        """The state of the last holder; of an earlier one if a machine that woke up has removed it."""
        earlier = (one for one in pointers(self.store, self.name) if one.token < self.pointer.token)
        for pointer in chain([self.pointer], earlier):
            if not pointer.states:
                continue
            if step_here(self.stage) >= pointer.states[0].step:
                return
            if states := self._downloaded(pointer):
                self._go_on_from(pointer.changed(states=states, token=self.pointer.token))
                return
            self.store.event("state_gone", stage=self.name, step=pointer.states[0].step)

    def _downloaded(self, pointer: Pointer) -> tuple[State, ...]:
        """The states that could be had; none if the newest could not."""
        states: list[State] = []
        for state in pointer.states:
            try:
                self.store.download(state.name, self.stage.path / STATE / state.file, state.sha256)
            except FileNotFoundError:
                if not states:
                    break
            else:
                states.append(state)
        return tuple(states)

    def _go_on_from(self, pointer: Pointer) -> None:
        folder = self.stage.path / STATE
        if pointer.decisions is not None:
            write_json(folder / DECISIONS, pointer.decisions)
        download_metrics(self.store, pointer.metrics, self.stage)
        newest_one, *older = (state.model_dump(exclude={"name"}) for state in pointer.states)
        write_json(folder / LATEST, {**newest_one, "older": older})
        self._sent[folder / LATEST] = _mark(folder / LATEST)
        self._point(pointer)
        logger.info("going on from step %d", newest_one["step"])

    def upload(self) -> None:
        """What the stage has so far, so that another machine can go on; `LeaseLost` if one does already."""
        self.check()
        self.upload_files()
        self.upload_state()

    def upload_files(self) -> None:
        """Finished files, under names that say what is in them."""
        first = set(self._loose())
        for file in sorted(self._loose()):
            # What the first look saw is whole, and so is all that was written before it.
            if file in first or any(file < other for other in first):
                self._upload_file(file)

    def _loose(self) -> Iterator[str]:
        """Files of the stage that are not about its progress."""
        for path in walk(self.stage.path):
            name = path.relative_to(self.stage.path)
            if name.parts[0] != STATE and name.name not in (DONE, STARTED, METRICS, RESOLVED):
                yield name.as_posix()

    def _upload_file(self, file: str) -> None:
        path = self.stage.path / file
        with contextlib.suppress(FileNotFoundError):
            if self._sent.get(path) != (mark := _mark(path)):
                self.store.upload(path, f"{self.folder}/{keyed(file, file_digest(path))}")
                self._sent[path] = mark

    def upload_state(self) -> None:
        """The newest state of training, what was measured and decided, and last the pointer to them."""
        started, decisions = self.stage.path / STARTED, self.stage.path / STATE / DECISIONS
        pointer = self.pointer.changed(
            started=read_json(started) if started.is_file() else self.pointer.started,
            states=self._uploaded_states(),
            decisions=read_json(decisions) if decisions.is_file() else self.pointer.decisions,
            metrics=self._uploaded_metrics(),
        )
        before, self.pointer = self.pointer, pointer
        if pointer != before:
            self._point(pointer)
        if pointer.states != before.states:
            self._tidy()
            self.store.event("checkpoint", stage=self.name, step=pointer.states[0].step)

    def _uploaded_states(self) -> tuple[State, ...]:
        latest = self.stage.path / STATE / LATEST
        if not latest.is_file() or self._sent.get(latest) == (mark := _mark(latest)):
            return self.pointer.states
        newest_one = read_json(latest)
        entries = [newest_one, *newest_one.pop("older", [])]
        with tempfile.TemporaryDirectory(dir=latest.parent, prefix=".outgoing-") as outgoing:
            for entry in entries:
                try:  # a second name, since training may remove the first one meanwhile
                    os.link(latest.parent / entry["file"], Path(outgoing) / entry["file"])
                except FileNotFoundError:
                    return self.pointer.states
            states = tuple(State(**entry, name=self._state_name(entry)) for entry in entries)
            for state in states:
                self.store.upload(Path(outgoing) / state.file, state.name)
        self._sent[latest] = mark
        return states

    def _state_name(self, entry: dict[str, Any]) -> str:
        """Where a state is in the store, or will be: it belongs to whoever uploaded it."""
        for state in self.pointer.states:
            if (state.file, state.sha256) == (entry["file"], entry["sha256"]):
                return state.name
        return f"{self._states}/{self.pointer.token:08d}/{keyed(entry['file'], entry['sha256'])}"

    @property
    def _states(self) -> str:
        return f"{self.folder}/{STATE}"

    def _uploaded_metrics(self) -> str | None:
        path = self.stage.path / METRICS
        if not path.is_file():
            return self.pointer.metrics
        name = f"{self.folder}/metrics.{self.pointer.token:08d}.jsonl"
        if self._sent.get(path) != (mark := _mark(path)):
            self.store.write(name, path.read_bytes())
            self._sent[path] = mark
        return name

    def _point(self, pointer: Pointer) -> None:
        self.pointer = pointer
        self.store.write(pointer_name(self.name, pointer.token), pointer.encoded())

    def _tidy(self) -> None:
        """Remove states that nobody goes on from: our own, and earlier holders' once there is one of ours."""
        own = f"{self._states}/{self.pointer.token:08d}/"
        if self.pointer.states[0].name.startswith(own):
            kept = {state.name for state in self.pointer.states}
            names = self.store.names(self._states)
            self.store.delete(name for name in names if name not in kept and name < f"{own}~")


def mark(stage: Stage, attempt: str) -> None:
    """Say of a stage's folder here of which attempt it is."""
    write_json(stage.path / ATTEMPT, {"attempt": attempt})


def download_metrics(store: Store, name: str | None, stage: Stage) -> None:
    """What a stage has measured so far, if that is more than what is here."""
    raw = store.read(name) if name else None
    path = stage.path / METRICS
    if raw is not None and len(raw) > (path.stat().st_size if path.is_file() else 0):
        with replacing(path) as beside:
            beside.write_bytes(raw)


def download_previews(store: Store, folder: str, stage: Stage) -> None:
    """Pictures of what a job could do on its way, as far as they are not here."""
    for name in store.names(f"{folder}/{previews.FOLDER}"):
        match = _KEYED.match(name.removeprefix(f"{folder}/"))
        if match is not None:
            path = stage.path / safe_name(match["stem"] + match["suffix"])
            if not path.is_file():
                store.download(name, path, match["sha"])


def walk(folder: Path) -> Iterator[Path]:
    """Every whole file below a folder: not hidden, not in a hidden folder; a job may remove others."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(parent, name) for name in files if not name.startswith(".")]
        yield from (path for path in paths if path.is_file())


def step_here(stage: Stage) -> int:
    """Of the newest state of training in the stage's folder; -1 where there is none."""
    latest = stage.path / STATE / LATEST
    return int(read_json(latest)["step"]) if latest.is_file() else -1


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size

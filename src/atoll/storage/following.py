"""A run in a store as it grows: records, and new lines of metrics, come to the cache of this machine."""

import contextlib
from pathlib import Path

from atoll.errors import AtollError, Interrupted
from atoll.runs import DONE, STARTED, Run, Stage, graph, write_json
from atoll.storage.cache import mirrored
from atoll.storage.pointer import newest
from atoll.storage.progress import METRICS, attempt_here, download_previews, mark

PATIENCE = 10.0
"""Seconds for which a store may fail before the next look is waited for."""


class Following:
    """Looks at a run in a store again and again; nothing is ever written to the store."""

    def __init__(self, address: str) -> None:
        self._mirror = mirrored(address, PATIENCE)
        self._names: dict[Path, str] = {}
        """Where the metrics are that each stage's folder here has."""
        self._complete: set[Path] = set()
        self.problem = ""
        """Why the last look failed, if it did."""

    @property
    def run(self) -> Run:
        """The run's folder here."""
        return self._mirror.run

    def refresh(self) -> None:
        """Bring the folder here up to date; where the store does not answer, it stays as it is."""
        self.problem = ""
        try:
            for node in graph.made(self.run):
                if node.kind.again:
                    self._refresh_plain(node.stage)
                else:
                    self._refresh(node.stage)
            self._mirror.download_events()
        except (AtollError, Interrupted) as error:
            self.problem = str(error)

    def _refresh_plain(self, stage: Stage) -> None:
        """The record of a stage whose files have their own names."""
        tree = self._mirror.store.read_json(f"{self._mirror.name(stage)}/{DONE}")
        if tree is not None:
            write_json(stage.path / DONE, tree)
        elif stage.done:
            stage.clear()

    def _refresh(self, stage: Stage) -> None:
        done = self._mirror.download_record(stage)
        if not done:
            self._complete.discard(stage.path)
            self._refresh_unfinished(stage)
        attempt = attempt_here(stage)
        if attempt is not None and stage.path not in self._complete:
            self._append_metrics(stage)
            download_previews(self._mirror.store, f"{self._mirror.name(stage)}/{attempt}", stage)
        if done:
            self._complete.add(stage.path)

    def _refresh_unfinished(self, stage: Stage) -> None:
        pointer = newest(self._mirror.store, self._mirror.name(stage))
        if pointer is None or stage.done or attempt_here(stage) != pointer.attempt:
            stage.clear()
        if pointer is not None:
            mark(stage, pointer.attempt)
            if pointer.started is not None:
                write_json(stage.path / STARTED, pointer.started)

    def _append_metrics(self, stage: Stage) -> None:
        """Ask for what the store has beyond what is here; every holder of a lease begins a new file."""
        name, path = self._mirror.metrics_name(stage), stage.path / METRICS
        if name is None:
            return
        if self._names.get(path) != name:
            self._names[path] = name
            path.unlink(missing_ok=True)
        size = path.stat().st_size if path.is_file() else 0
        if data := self._mirror.store.read_from(name, size):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(data)

    def file(self, stage: Stage, name: str) -> bytes | None:
        """A file of a stage whose files have their own names."""
        with contextlib.suppress(AtollError, Interrupted):
            return self._mirror.store.read(f"{self._mirror.name(stage)}/{name}")
        return None

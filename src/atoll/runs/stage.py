"""One finished part of a run, or one that is being made."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.errors import CorruptError, RunError, StaleError
from atoll.runs.files import digest, file_digest, read_json, write_json

DONE = "done.json"

STARTED = "started.json"


class Stage:
    """One folder of a run that is either finished, with `done.json` to say so, or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> bool:
        """Whether the stage is finished."""
        return (self.path / DONE).is_file()

    @property
    def here(self) -> bool:
        """Whether it is finished and its files are here; from a store the record may have come alone."""
        return self.done and all((self.path / name).is_file() for name in self.record["files"])

    @property
    def contents(self) -> dict[str, Any]:
        """What `done.json` says is in the folder."""
        return dict(self.record["contents"])

    @property
    def record(self) -> dict[str, Any]:
        """The whole of `done.json`."""
        if not self.done:
            raise RunError(f"{self.path} is not finished; run `atoll run` on its recipe first")
        return dict(read_json(self.path / DONE))

    @property
    def digest(self) -> str:
        """A hash of what this stage holds: the digests of its files."""
        return digest(self.record["files"])

    def begin(self, made_from: Mapping[str, Any], start_over: bool = False) -> bool:
        """Open the stage for these inputs; False if it is already finished from the very same ones."""
        if start_over:
            shutil.rmtree(self.path, ignore_errors=True)
        if self.current(made_from):
            return False
        if (self.path / STARTED).is_file():
            before = read_json(self.path / STARTED)["made_from"]
            if before != dict(made_from):
                raise StaleError(self._what_changed(before, made_from))
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / STARTED, {"made_from": dict(made_from)})
        return True

    def current(self, made_from: Mapping[str, Any]) -> bool:
        """Whether the stage is finished from these very inputs; an error if it is from others."""
        if not self.done:
            return False
        before = self.record["made_from"]
        if before != dict(made_from):
            raise StaleError(self._what_changed(before, made_from))
        return True

    def finish(self, made_from: Mapping[str, Any], files: list[str], contents: Mapping[str, Any]) -> None:
        """Say that the stage is finished, with the digest of each of its files; the last write of all."""
        record = {
            "made_from": dict(made_from),
            "files": {name: file_digest(self.path / name) for name in sorted(files)},
            "contents": dict(contents),
        }
        write_json(self.path / DONE, record)
        (self.path / STARTED).unlink(missing_ok=True)

    def verify(self, name: str) -> Path:
        """The path of one file of a finished stage, after checking that it is the one that was written."""
        path = self.path / name
        expected = self.record["files"].get(name)
        if not path.is_file():
            raise CorruptError(f"{path} is missing; delete {self.path} and run the same command again")
        if expected != file_digest(path):
            raise CorruptError(
                f"{path} is damaged (sha256 differs); delete {self.path} and run the same command again"
            )
        return path

    def _what_changed(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
        keys = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        return (
            f"{self.path} was made with other {', '.join(keys)}; add --start-over to replace it, "
            "or give the recipe another name"
        )

"""One finished part of a run, or one that is being made."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic

from typing_extensions import TypeVar

from atoll.errors import CorruptError, RunError, StaleError
from atoll.runs import repair
from atoll.runs.files import file_digest, read_json, write_json
from atoll.runs.records import Contents, StageRecord, StartedRecord, parse_record, parse_started

ContentsT_co = TypeVar("ContentsT_co", bound=Contents, default=Any, covariant=True)

DONE = "done.json"

STARTED = "started.json"


class Stage(Generic[ContentsT_co]):
    """One folder of a run that is either finished, with `done.json` to say so, or not.

    Where it is known what it must hold, `kind` says so, and a record of something else is refused.
    """

    def __init__(self, path: Path, kind: type[ContentsT_co] | None = None) -> None:
        self.path = path
        self._kind: type[Contents] = kind or Contents

    @property
    def done(self) -> bool:
        """Whether the stage is finished."""
        return (self.path / DONE).is_file()

    @property
    def here(self) -> bool:
        """Whether it is finished and its files are here; from a store the record may have come alone."""
        return self.done and all((self.path / name).is_file() for name in self.record.files)

    @property
    def contents(self) -> ContentsT_co:
        """What `done.json` says is in the folder."""
        contents: Any = self.record.holding(self._kind, str(self.path))
        return contents

    @property
    def record(self) -> StageRecord:
        """The whole of `done.json`."""
        if not self.done:
            raise RunError(f"{self.path} is not finished; {repair.unfinished(self.path)}")
        return parse_record(read_json(self.path / DONE), str(self.path / DONE))

    @property
    def digest(self) -> str:
        """A hash of what this stage holds: the digests of its files."""
        return self.record.digest

    def clear(self) -> None:
        """Throw away what is in the folder; of a link, the link."""
        if self.path.is_symlink():
            self.path.unlink()
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    def begin(self, made_from: Mapping[str, Any], start_over: bool = False) -> bool:
        """Open the stage for these inputs; False if it is already finished from the very same ones."""
        if start_over:
            shutil.rmtree(self.path, ignore_errors=True)
        if self.current(made_from):
            return False
        before = self.started
        if before is not None and before != dict(made_from):
            raise StaleError(self._what_changed(before, made_from))
        self.start(made_from)
        return True

    @property
    def started(self) -> dict[str, Any] | None:
        """What the stage is being made from, if it is."""
        path = self.path / STARTED
        return parse_started(read_json(path), str(path)).made_from if path.is_file() else None

    def start(self, made_from: Mapping[str, Any]) -> None:
        """Say what the stage is being made from."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / STARTED, StartedRecord(made_from=dict(made_from)).model_dump(mode="json"))

    def current(self, made_from: Mapping[str, Any]) -> bool:
        """Whether the stage is finished from these very inputs; an error if it is from others."""
        if not self.done:
            return False
        before = self.record.made_from
        if before != dict(made_from):
            raise StaleError(self._what_changed(before, made_from))
        return True

    def finish(self, made_from: Mapping[str, Any], files: list[str], contents: Contents) -> None:
        """Say that the stage is finished, with the digest of each of its files; the last write of all."""
        digests = {name: file_digest(self.path / name) for name in sorted(files)}
        self.write(StageRecord.of(made_from, digests, contents))
        (self.path / STARTED).unlink(missing_ok=True)

    def write(self, record: StageRecord) -> None:
        """Write the record as it is."""
        write_json(self.path / DONE, record.facts())

    def verify(self, name: str) -> Path:
        """The path of one file of a finished stage, after checking that it is the one that was written."""
        path = self.path / name
        expected = self.record.files.get(name)
        if not path.is_file():
            raise CorruptError(f"{path} is missing; {repair.advice(self.path)}")
        if expected != file_digest(path):
            raise CorruptError(f"{path} is damaged (sha256 differs); {repair.advice(self.path)}")
        return path

    def _what_changed(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
        keys = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        return (
            f"{self.path} was made with other {', '.join(keys)}; add --start-over to replace it, "
            "or give the recipe another name"
        )

"""A run on disk: where things live, what is done, metrics as lines."""

import contextlib
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from atoll.config import RunConfig, TrainConfig, assignments, merged, validate
from atoll.errors import AtollError, ConfigError, CorruptError, RunError, StaleError

DONE = "done.json"
STARTED = "started.json"
RECIPE, RESOLVED = "run.toml", "resolved.json"
"""What a run says of itself: the recipe as it was written, and all that it means."""


def digest(value: Any) -> str:
    """A hash of any JSON value that does not depend on the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; on success it replaces `path`, on failure nothing changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a part."""
    with replacing(path) as beside:
        beside.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file of a run."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; run the stage that writes it, or `atoll run`, first") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CorruptError(f"{path} is damaged; delete its folder and run the same command again") from None


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
            text = recipe.read_text(encoding="utf-8")
            with replacing(run.path / RECIPE) as beside:
                beside.write_text(text, encoding="utf-8")
        write_json(run.path / RESOLVED, config.model_dump(mode="json"))
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
            changed = _differences(tree, config.model_dump(mode="json")) if tree else []
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
        with contextlib.suppress(OSError):  # there may be more in it than we know of
            self.path.rmdir()

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open an existing run's folder."""
        if not (path / RESOLVED).is_file():
            raise RunError(f"{path} is not a run (no {RESOLVED}); give a folder that `atoll run` made")
        return cls(path, validate(read_json(path / RESOLVED), str(path / RESOLVED)))

    def changed(self, overrides: Iterable[str]) -> "Run":
        """The same folder, asked for other samples or numbers; nothing is written down."""
        changes = assignments(overrides)
        for key in changes.keys() - {"evaluate", "sample"}:
            raise ConfigError(f"--set {key}: this command has use for [evaluate] or [sample] alone")
        tree = merged(self.config.model_dump(mode="json"), changes)
        return Run(self.path, validate(tree, "--set"))

    def stage(self, *parts: str) -> Stage:
        """One stage of this run."""
        return Stage(self.path.joinpath(*parts))

    @property
    def data(self) -> Stage:
        """All samples at rest."""
        return self.stage("data")

    @property
    def partition(self) -> Stage:
        """Centroids, assignment, sizes, and one folder per cluster."""
        return self.stage("partition")

    def cluster(self, index: int) -> Stage:
        """One cluster's samples: all that its expert may see."""
        return self.stage("partition", f"cluster-{index:02d}")

    def expert(self, index: int) -> Stage:
        """One expert; the folder of a student is a run whose only expert is the folder itself."""
        whole = self.stage()
        return whole if whole.done else self.stage("experts", f"{index:02d}")

    @property
    def router(self) -> Stage:
        """The router."""
        return self.stage("router")

    @property
    def student(self) -> Stage:
        """The one model distilled from all experts."""
        return self.stage("student")

    @property
    def few_step(self) -> Stage:
        """The one that needs few steps."""
        return self.stage("few-step")

    def drawn(self, index: int) -> Stage:
        """Samples of one expert in place of its cluster's."""
        return self.stage("drawn", f"cluster-{index:02d}")

    def expert_inputs(self, index: int) -> dict[str, Any]:
        """What expert `index` is made from."""
        settings = self.config.expert_for(index)
        inputs = self.training_inputs(settings, [self.cluster(index)])
        if settings.init is not None:
            init = Stage(Path(settings.init))
            if not init.done:
                raise ConfigError(
                    f"expert.init '{init.path}' holds no finished expert; give the folder of one that was "
                    "trained, or that `atoll import` made"
                )
            inputs["init"] = init.digest
        return inputs

    def router_inputs(self) -> dict[str, Any]:
        """What the router is made from."""
        clusters = [self.cluster(index) for index in range(self.config.partition.clusters)]
        return self.training_inputs(self.config.router, clusters)

    def training_inputs(self, settings: TrainConfig, clusters: list[Stage]) -> dict[str, Any]:
        """What any training is made from, but for `init` and what others stand for."""
        ignored = {*settings.OPERATION, "init", "override", "few", "islands", "resident"}
        return {
            "seed": self.config.seed,
            "settings": digest(settings.model_dump(mode="json", exclude=ignored)),
            "condition": digest(self.config.condition.model_dump(mode="json")),
            "data": digest([cluster.digest for cluster in clusters]),
        }

    def event(self, kind: str, **facts: Any) -> None:
        """Append one line to the run's log of events."""
        append_line(self.path / "events.jsonl", {"time": time.time(), "event": kind, **facts})


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _tree(text: bytes | None) -> dict[str, Any]:
    with contextlib.suppress(ValueError, TypeError):
        return dict(json.loads(text or b""))
    return {}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Which keys of a config have other values, with both of them."""
    found = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key} was {json.dumps(old)}, is {json.dumps(new)}")
    return found


def runs_folder() -> Path:
    """Where runs live: $ATOLL_RUNS, or `runs` here."""
    return Path(os.environ.get("ATOLL_RUNS", "runs"))


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON object as one line, in one write, so that others may read along."""
    line = json.dumps(value, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


class Metrics:
    """A job's `metrics.jsonl`: one object per line, opened once, readable while it grows."""

    def __init__(self, path: Path, done: int) -> None:
        """Open the file after `done` steps, dropping lines of later ones: they will be taken again."""
        if path.is_file():
            kept = [line for line in read_lines(path) if line["step"] <= done]
            with replacing(path) as beside:
                beside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, step: int, **values: float) -> None:
        """Append one line; a value that is not finite is a bug of the caller."""
        assert all(math.isfinite(value) for value in values.values()), values
        self._file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; a last line that is only half written is left out."""
    lines: list[dict[str, Any]] = []
    if path.is_file():
        for text in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
    return lines

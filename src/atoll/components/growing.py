"""A run grows by data that has arrived: a part on that data alone, by the run's own recipe, is added."""

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from atoll.components import adding, calibrating, making
from atoll.config import RunConfig, anchored, assignments, merged, validate
from atoll.data import forgetting
from atoll.data.parts import Parts
from atoll.errors import ConfigError, DataError, RunError
from atoll.runs import RESOLVED, Run, Stage, made_in, runs_folder
from atoll.runs.components import ComponentContents, Member

Progress = Callable[[str, int, int], None]


class Growth(NamedTuple):
    """The part that has joined, the run that it was made in, and how many samples were new."""

    member: Member
    made_in: Run
    rows: int


def grow(
    run: Run, data: str | None = None, overrides: Iterable[str] = (), progress: Progress | None = None
) -> Growth:
    """Train a part on what is new in `data`, by default in the run's own source, and add it.

    What the run or one of its earlier growths has is left out. Whoever is interrupted goes on.
    """
    if data is None and not run.data.here:
        raise RunError(f"{run.path} has no samples here to tell what is new; say what is: --data NEW")
    number = run.members.count(run.config.partition.clusters)
    resolved = making.private_config(_changed(run, number, overrides), run, data)
    private = _begun(resolved)
    made = Stage(private.path / "component", ComponentContents)
    if not made.done:
        with _gone_if_refused(private):
            making.make(
                private, run, made.path, progress=progress, prepared=lambda: leave_out(private, known(run))
            )
    try:
        member = adding.add(run, made.path, home=lambda: calibrating.judged(private, 0))
    except ConfigError as error:  # hours of training may be in it
        raise ConfigError(
            f"{error}; it stays in {made.path}, to be added then; delete {private.path} to train another"
        ) from None
    return Growth(member, private, made.contents.rows)


@contextlib.contextmanager
def _gone_if_refused(private: Run) -> Iterator[None]:
    """Leave nothing of samples that are too few, known or of another kind: next time there may be others."""
    try:
        yield
    except DataError:
        if not private.expert(0).path.exists():
            shutil.rmtree(private.path)
        raise


def _begun(resolved: RunConfig) -> Run:
    """The run that the part is made in, new or where it was left; never one of other data or settings."""
    folder = runs_folder() / resolved.name
    if (folder / RESOLVED).is_file() and Run.open(folder).config != resolved:
        raise ConfigError(
            f"{folder} was begun with other data or settings; delete it, or give the same again"
        )
    return Run.create(resolved)


def _changed(run: Run, number: int, overrides: Iterable[str]) -> RunConfig:
    """The run's own settings with what is different for this part, and a name of its own."""
    tree = merged(run.config.model_dump(mode="json"), assignments(overrides))
    tree["name"] = f"{run.config.name}-{number}"
    return validate(anchored(tree, Path.cwd()), str(run.path / RESOLVED))


def known(run: Run) -> set[bytes]:
    """The ids of all samples that a run has, and of those that it has grown by on this machine."""
    ids = set(_ids(run)) if run.data.here else set()
    for member in run.members.present:
        private = made_in(run, member.number)
        if private is not None and private.data.here:
            ids |= set(_ids(private))
    return ids


def _ids(run: Run) -> list[bytes]:
    parts = Parts(run.data)
    return [raw for name in parts.names for raw in parts.columns(name, ["id"])["id"].to_pylist()]


def leave_out(run: Run, ids: Collection[bytes]) -> None:
    """Take samples that are known out of data that was prepared; an error if nothing is left."""
    own = _ids(run)
    old = set(own) & set(ids)
    if old == set(own):
        raise DataError(f"{run.config.data.source} has no sample that is not in the run already")
    if old:
        forgetting.take_out(run, old, clusters=False)

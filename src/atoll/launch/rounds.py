"""Distillation by sites that share only a store: a round begins with downloads and ends with uploads."""

from collections.abc import Callable
from pathlib import Path

from atoll.runs import DONE, Run, Stage, graph, inputs
from atoll.runs.graph import resolve
from atoll.storage.mirror import Mirror

ROUNDS = "student/rounds"
KEPT = 2
"""Rounds that stay in the store: the last, and the one that it is made from."""


def site(run: Run, index: int) -> Stage:
    """One site's part of the round that is due, with its own experts and clusters alone."""
    make: Callable[[Run, int], Stage] = resolve("atoll.train.rounds:site")
    if not run.config.launch.store:
        return make(run, index)
    mirror = Mirror.of(run)
    mirror.open(lead=False)
    groups = inputs.site_clusters(run.config)
    own = groups[index] if 0 <= index < len(groups) else []
    for stage in (*(run.expert(cluster) for cluster in own), *inputs.lesson_clusters(run, own)):
        mirror.download(stage)
    mirror.download_record(run.partition)
    _download(mirror, lambda name: name in ("start", "merged", f"site-{index:02d}"))
    made = make(run, index)
    _upload(mirror)
    return made


def merge(run: Run) -> Stage:
    """The outer step of the round that is due, from what sites have uploaded; after the last, the student."""
    make: Callable[[Run], Stage] = resolve("atoll.train.rounds:merge")
    if not run.config.launch.store:
        return make(run)
    mirror = Mirror.of(run)
    mirror.open(lead=False)
    student = graph.of_stage(run, run.student)
    for one in (*student.reads, *student.records):
        mirror.download(one.stage)
    _download(mirror, lambda name: True)
    made = make(run)
    _upload(mirror)
    if run.student.done and not mirror.is_done(run.student):
        mirror.upload(run.student)
    _tidy(mirror)
    return made


def _finished(mirror: Mirror) -> list[Path]:
    """The folders of all parts of rounds that are finished in the store, of late rounds alone, in order."""
    names = [name for name in mirror.store.names(ROUNDS) if name.endswith(f"/{DONE}")]
    folders = sorted(Path(name).parent for name in names)
    late = sorted({folder.parent.name for folder in folders if folder.name != "start"})[-KEPT:]
    return [folder for folder in folders if folder.name == "start" or folder.parent.name in late]


def _download(mirror: Mirror, wanted: Callable[[str], bool]) -> None:
    for folder in _finished(mirror):
        if wanted(folder.name):
            mirror.download(Stage(mirror.run.path / folder))


def _upload(mirror: Mirror) -> None:
    for path in sorted((mirror.run.path / ROUNDS).rglob(DONE)):
        if not mirror.is_done(Stage(path.parent)):
            mirror.upload(Stage(path.parent))
    mirror.upload_events()


def _tidy(mirror: Mirror) -> None:
    """Remove what no site will ask for any more."""
    kept = {folder.as_posix() for folder in _finished(mirror)}
    old = [name for name in mirror.store.names(ROUNDS) if "/start/" not in name]
    mirror.store.delete(name for name in old if "/".join(name.split("/")[:4]) not in kept)

"""The host killed while it publishes, lays out or writes its log; started again, nothing shows of it."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.config import validate
from atoll.net import filing, history, host, log, protocol, restore, units
from atoll.net.database import Database
from atoll.net.host import Choices
from atoll.net.protocol import File
from atoll.net.sources import open_source
from atoll.runs import Run
from tests.net import test_crash_points, test_paying
from tests.net.crowds import sha
from tests.net.dying import killed

FILES = {f"experts/00/part-{number}.bin": f"file {number}".encode() * 50 for number in range(3)}
POINTS = [
    "publish.file",
    "publish.before-commit",
    "publish.after-commit",
    "log.publish.bundle",
    "log.publish.tile",
    "log.publish.before-checkpoint",
    "log.publish.after-checkpoint",
    "host.before-layout",
    "artifacts.laid-out",
    "host.after-layout",
]
TAKEN_OVER = ["restore.before-commit", "restore.after-commit"]


def run_of(folder):
    source = folder / "pictures.npz"
    if not source.is_file():
        np.savez(source, images=np.zeros((4, 8, 8), np.uint8))
    tree = {"name": "killed", "data": {"source": str(source)}, "partition": {"clusters": 2, "fine": 4}}
    run = Run(folder / "runs" / "killed", validate(tree, "a test"))
    run.path.mkdir(parents=True, exist_ok=True)
    return run


def live(folder):
    """Publish, let strangers' files arrive, publish the log, lay the run out."""
    with host.opened(run_of(folder), Choices(quorum=1)) as hosted:
        here = hosted.coordinator
        for data in FILES.values():
            here.artifacts.write(data)
        table = {path: File(path=path, sha256=sha(data), size=len(data)) for path, data in FILES.items()}
        with here.database.writing() as session:
            filing.add_files(session, table)
        hosted.publisher.publish()
        hosted.lay_out()


@pytest.mark.parametrize("point", POINTS)
def test_killed_and_started_again(tmp_path, point):
    assert killed(lambda: live(tmp_path), point) == -signal.SIGKILL, "the point is on the way"
    live(tmp_path)
    run = run_of(tmp_path)
    assert {path: (run.path / path).read_bytes() for path in FILES} == FILES
    with host.opened(run, Choices(quorum=1)) as hosted:
        with hosted.coordinator.database.reading() as session:
            assert log.check(session) == 1, "the manifest was published once"
            table = filing.table_of(session)
        manifest = protocol.parse(protocol.Manifest, hosted.manifest.manifest.encode())
        assert {file.path for file in manifest.inputs} == {"source/pictures.npz"} == set(table) - set(FILES)
        assert units.folder(table).keys() == FILES.keys()
        past = history.read(open_source(str(run.path / "network" / "store")))
        assert len(past.statements) == 1 and past.run == hosted.coordinator.run and not past.faults


@pytest.mark.parametrize("point", TAKEN_OVER)
def test_killed_while_it_takes_a_run_over(tmp_path, monkeypatch, point):
    live(tmp_path)
    store = str(run_of(tmp_path).path / "network" / "store")
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "elsewhere"))
    assert killed(lambda: restore.take_over(store, Choices(quorum=1)), point) == -signal.SIGKILL
    run = restore.take_over(store, Choices(quorum=1))
    database = Database(str(run.path / "network" / "coordinator.db"))
    with database.reading() as session:
        assert log.check(session) == 2, "the manifest, and that it is a fork under other keys"
        assert set(filing.table_of(session)) == {"source/pictures.npz"}
    database.close()


def test_every_named_point_is_killed_at_somewhere():
    source = "".join(path.read_text() for path in (Path(atoll.__file__).parent / "net").rglob("*.py"))
    named = set(re.findall(r'crash_point\("([^"]+)"\)', source))
    projecting = {name for name in named if name.startswith("ledger.project.")}  # by tests/net/test_ledger.py
    tested = {*POINTS, *TAKEN_OVER, *test_crash_points.POINTS, *test_paying.POINTS, *projecting}
    assert named - tested == set(), "kill there in a test"

"""What every test needs: one thread, a run folder of its own, and quick tiny recipes."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from atoll import config, threads
from atoll.config import RunConfig
from atoll.launch import warm
from atoll.runs import Run, write_json
from tests import commands, s3, serving
from tests.clocks import ManualClock

settings.register_profile("atoll", deadline=None, derandomize=True, database=None)
settings.load_profile("atoll")

TINY = """
name = "tiny"
[data]
source = "fashion-5k"
[partition]
clusters = 3
fine = 12
[expert]
width = 16
depth = 1
heads = 2
patch = [7, 7]
steps = 10
batch = 8
lr = 1e-2
log_every = 2
save_every = 3
[router]
width = 16
depth = 1
heads = 2
patch = [7, 7]
steps = 6
batch = 8
lr = 1e-2
[sample]
num = 6
steps = 3
precision = "float32"
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    for name, value in {**dict.fromkeys(threads.COUNTS, "1"), **threads.WAITING}.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _jobs_are_forked() -> Iterator[None]:
    """From one process for all tests, where they need no other: see `tests.commands`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "INHERITED", commands.Shared() if warm.FORKS else None)
        yield
    commands.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe that runs in a second or two."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


Prepare = Callable[..., Run]


@pytest.fixture(scope="session")
def _tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny recipe's data and clusters, made once for all tests."""
    from atoll.data import encode, partition

    folder = tmp_path_factory.mktemp("tiny-data")
    (folder / "tiny.toml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_RUNS", str(folder))
        run = Run.create(config.load(folder / "tiny.toml"), folder / "tiny.toml")
    encode.prepare(run)
    partition.partition(run)
    return run.path


@pytest.fixture
def prepared(tiny: Path, _tiny_data: Path, tmp_path: Path) -> Prepare:
    """Give a run, with overrides if wanted, whose data and clusters are there, as links."""

    def make(*overrides: str, name: str = "tiny") -> Run:
        resolved: RunConfig = config.load(tiny, [*overrides, f"name='{name}'"])
        run = Run.create(resolved, tiny)
        for stage in ("data", "partition"):
            (run.path / stage).symlink_to(_tiny_data / stage)
        return run

    return make


@pytest.fixture(scope="session")
def _tiny_finished(_tiny_data: Path) -> Path:
    """The tiny recipe's experts and router, trained once for all tests."""
    from atoll.train import jobs

    run = Run.open(_tiny_data)
    for k in range(run.config.partition.clusters):
        jobs.expert(run, k)
    jobs.router(run)
    return run.path


@pytest.fixture
def finished(_tiny_finished: Path, tmp_path: Path) -> Run:
    """A finished run of one's own, as links to one that is never written to."""
    folder = tmp_path / "runs" / "finished"
    folder.mkdir(parents=True)
    for entry in _tiny_finished.iterdir():
        if entry.name not in ("samples", "report"):
            (folder / entry.name).symlink_to(entry)
    return Run.open(folder)


Taught = Callable[..., Run]


@pytest.fixture
def taught(finished: Run) -> Taught:
    """Give the finished run with a [student]: tiny unless said otherwise."""

    def make(**student: object) -> Run:
        tree = finished.config.model_dump(mode="json")
        tiny = {"steps": 10, "batch": 8, "lr": 1e-2, "log_every": 2, "save_every": 3}
        run = Run(finished.path, config.validate({**tree, "student": {**tiny, **student}}, "a test"))
        write_json(run.path / "resolved.json", run.config.model_dump(mode="json"))
        return run

    return make


@pytest.fixture(scope="session")
def _s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.Proxy]:
    """A real S3 server behind a proxy that can fail, for all tests of a process."""
    with s3.server(tmp_path_factory.mktemp("s3") / "server") as port:
        proxy = s3.Proxy(port)
        yield proxy
        proxy.close()


@pytest.fixture
def google(
    _s3: s3.Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[s3.Place]:
    """The same server by Google's protocol: a folder of one's own in its open bucket."""
    proxy = s3.Google(_s3.backend)
    for name, value in proxy.environment().items():
        monkeypatch.setenv(name, value)
    yield s3.Place(f"gs://{s3.OPEN_BUCKET}/{abs(hash(request.node.nodeid)):x}", proxy)
    proxy.close()


@pytest.fixture
def store(_s3: s3.Proxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> s3.Place:
    """A folder of one's own in the bucket, with access to it in the environment, and no faults yet."""
    _s3.reset()
    for name, value in s3.environment(_s3.port).items():
        monkeypatch.setenv(name, value)
    return s3.Place(f"s3://{s3.BUCKET}/{abs(hash(request.node.nodeid)):x}", _s3)


@pytest.fixture
def clock() -> ManualClock:
    """Time passes only when a test says so."""
    return ManualClock()


@pytest.fixture
def events() -> list[Any]:
    """What was told, to be filled by whoever tells it."""
    return []


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny text encoder of random weights, in a folder that is never written to."""
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return serving.text_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[None]:
    """A Ray cluster of one machine, for all tests of a file; its workers have the first one's environment.

    It believes in as many GPUs as the file says.
    """
    from atoll.launch import on_ray

    library = on_ray.library()
    memory = {"object_store_memory": 80 * 10**6, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_SCRATCH", str(tmp_path_factory.mktemp("scratch")))
        patch.setenv("OMP_NUM_THREADS", "1")
        gpus = getattr(request.module, "RAY_GPUS", 0)
        library.init(address="local", num_cpus=2, num_gpus=gpus, log_to_driver=False, **memory)
        yield
        library.shutdown()


FIRST = [
    "tests/launch/test_on_ray.py",
    "tests/launch/test_leased.py",
    "tests/test_end_to_end.py",
    "tests/launch/test_on_slurm.py",
    "tests/study/test_cells.py",
    "tests/contracts/test_engines.py",
    "tests/study/test_driving.py",
    "tests/launch/test_beginnings.py",
]
"""What takes longest: begun first, so that workers end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first; `--dist loadfile --no-loadscope-reorder` keeps to it."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    return FIRST.index(file) if file in FIRST else len(FIRST)

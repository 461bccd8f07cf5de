"""What every test needs: one thread, a run folder of its own, and quick tiny recipes."""

import gc
import importlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hypothesis import settings

from atoll import config, devices, threads
from atoll.config import RunConfig
from atoll.launch import warm
from atoll.runs import Run, write_json
from tests import abreast, commands, forge, hasty, holding, s3, thorough
from tests.beforehand import TINY, Beforehand, customized, prepare, train
from tests.clocks import ManualClock

MEMORY = Path("/dev/shm")
"""Where files of tests are kept if there is room: none has to outlive them, and disks keep one waiting."""
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    os.environ.setdefault("TMPDIR", str(MEMORY))
    tempfile.tempdir = None  # pytest has looked before us

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process of a test compiles all of it anew

EXAMPLES = int(os.environ.get("ATOLL_EXAMPLES", thorough.often(25, 12)))
"""Of everything that is generated. They are the same every time, so that more of them only cost time: who
changes what a property is about tries more."""
settings.register_profile("atoll", max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
settings.load_profile("atoll")

hasty.lighten()

BEFOREHAND = pytest.StashKey[Beforehand]()
TINY_RUN = pytest.StashKey[Path | None]()


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    for name, value in {**dict.fromkeys(threads.COUNTS, "1"), **threads.WAITING}.items():
        monkeypatch.setenv(name, value)
    if "torch" in sys.modules:  # loading it is left to those who need it: who hands out tests does not
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_long(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[str]:
    """Neither here nor in any process that a test starts: see `tests.hasty`; where those find modules."""
    is_begun = BEFOREHAND in request.config.stash
    with pytest.MonkeyPatch.context() as patch:
        if not is_begun:
            patch.setenv("PYTHONPATH", customized(tmp_path_factory.mktemp("customize")))
        patch.setenv(holding.FOLDER, str(tmp_path_factory.mktemp("held")))
        for name in hasty.WAITS:
            if name.startswith("atoll.launch"):  # stores have clocks of the tests' own here
                hasty.hasten(importlib.import_module(name))
        yield os.environ["PYTHONPATH"]


@pytest.fixture(scope="session", autouse=True)
def _jobs_are_forked(_nobody_waits_long: str) -> Iterator[None]:
    """From one process for all tests, where they need no other: see `tests.commands`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "INHERITED", commands.Shared() if warm.FORKS else None)
        yield
    commands.close()


@pytest.fixture(scope="session")
def _forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Jobs of Slurm and Ray are forked as well: see `tests.forge`."""
    with forge.opened(tmp_path_factory.mktemp("forge")) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv(hasty.FORGE, address)
        yield address


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe that runs in a second or two."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


Prepare = Callable[..., Run]


@pytest.fixture(scope="session")
def _tiny_data(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The tiny recipe's data and clusters, made once for all tests."""
    return request.config.stash.get(TINY_RUN, None) or prepare(tmp_path_factory.mktemp("tiny-data"))


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
    train(_tiny_data)
    return _tiny_data


def linked(source: Path, folder: Path) -> Run:
    """A run in a folder of its own, as links to one that is never written to."""
    folder.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name not in ("samples", "report"):
            (folder / entry.name).symlink_to(entry)
    return Run.open(folder)


@pytest.fixture
def finished(_tiny_finished: Path, tmp_path: Path) -> Run:
    """A finished run of one's own."""
    return linked(_tiny_finished, tmp_path / "runs" / "finished")


Taught = Callable[..., Run]


@pytest.fixture
def taught(finished: Run) -> Taught:
    """Give the finished run with a [student]: tiny unless said otherwise."""

    return partial(with_student, finished)


def with_student(finished: Run, **student: object) -> Run:
    """A finished run in which a student is wanted, too."""
    tree = finished.config.model_dump(mode="json")
    tiny = {"steps": 10, "batch": 8, "lr": 1e-2, "log_every": 2, "save_every": 3, "compile": "off"}
    run = Run(finished.path, config.validate({**tree, "student": {**tiny, **student}}, "a test"))
    write_json(run.path / "resolved.json", run.config.model_dump(mode="json"))
    return run


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
    from tests import serving

    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return serving.text_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def cluster(
    _s3: s3.Proxy,
    tmp_path_factory: pytest.TempPathFactory,
    _nobody_waits_long: str,
    _forge: str,
    request: pytest.FixtureRequest,
) -> Iterator[Any]:
    """Three machines of Ray with access to the bucket, for all tests of a process.

    One test submits runs to it; what takes them is many processes, and not started for others.
    """
    with pytest.MonkeyPatch.context() as patch:
        variables = {**s3.environment(_s3.port), "ATOLL_SCRATCH": str(tmp_path_factory.mktemp("scratch"))}
        variables |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": _nobody_waits_long}
        variables["RAY_prestart_worker_first_driver"] = "0"  # workers that nobody needs
        variables["RAY_worker_niceness"] = "0"  # else a busy machine leaves its jobs next to nothing
        for name, value in variables.items():
            patch.setenv(name, value)
        from tests import rays

        submissions = any("submitted_from_a_laptop" in item.name for item in request.session.items)
        with rays.cluster(Path(variables["ATOLL_SCRATCH"]), submissions) as made:
            yield made


@pytest.fixture(scope="module")
def ray(cluster: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """That cluster, joined for all tests of a file; if they play, its workers find modules accordingly."""
    from tests import rays

    variables = {}
    if getattr(request.module, "PLAYS", False):
        variables["PYTHONPATH"] = request.getfixturevalue("playground")
    with rays.joined(cluster, variables):
        yield


CLUSTER = [
    "tests/contracts/test_engines.py",
    "tests/study/test_driving.py",
    "tests/launch/test_beginnings.py",
    "tests/launch/test_on_ray.py",
]
"""One cluster of Ray for all of them; the last takes a machine away from it."""
UNITS = "end_to_end worker trust drawing client work trial joining narrating paying relocating turn audit"
RECORDED = [f"tests/net/test_{name}.py" for name in UNITS.split()]
"""One recorded run of units for all of them."""
TOGETHER = [CLUSTER, RECORDED]
FIRST = [
    *CLUSTER,
    "tests/launch/test_leased.py",
    *RECORDED,
    "tests/test_readme.py",
    "tests/study/test_cells.py",
    "tests/test_golden_thread.py",
    "tests/test_end_to_end.py",
    "tests/train/test_on_a_gpu.py",
    "tests/train/test_rounds.py",
    "tests/train/test_few_step.py",
    "tests/serve/test_clients.py",
    "tests/net/test_adversaries.py",
    "tests/launch/test_on_slurm.py",
]
"""What takes longest: begun first, so that workers end together."""


SHAPES = ("tests/flow/", "tests/models/", "tests/sampling/", "tests/train/")
if not thorough.THOROUGH:
    SHAPES = ("tests/flow/", "tests/models/", "tests/train/test_loop")
"""Where shapes are checked at every call of networks and mathematics, which takes a quarter of their time.
Elsewhere they are called as they are there."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    again = item.config.option.other_units  # the first time somebody has looked
    jaxtyping.config.update("jaxtyping_disable", again or not item.nodeid.startswith(SHAPES))


def pytest_collection_finish() -> None:
    """What is loaded by now stays, and cycles are rare: looking for them took a sixth of the time.

    Loggers that libraries have cut off from all others are heard as all others are: else each of six times
    per test all of them are given an ear, and lose it.
    """
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


LEFT = pytest.StashKey[int]()
"""How many tests only CI runs."""


@pytest.hookimpl(trylast=True)  # after -k and -m, so that what they ask for is there
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files come first, and `--abreast` keeps to it."""
    named = config.option.keyword or config.option.markexpr or any("::" in name for name in config.args)
    kept = thorough.kept(items, named=bool(named))
    names = {item.nodeid for item in kept}
    config.stash[LEFT] = len(items) - len(kept)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = sorted(kept, key=_turn)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT, 0):
        terminalreporter.write_line(f"{left} more with ATOLL_THOROUGH=1, as CI runs them: tests/thorough.py")


def _turn(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    return FIRST.index(file) if file in FIRST else len(FIRST)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--abreast", type=int, default=1, help="how many processes run tests: tests/abreast.py")
    parser.addoption("--other-units", action="store_true", help="as on a CPU that has what this one lacks")
    parser.addoption("--twice", action="store_true", help="what trains once more, with --other-units")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.other_units:
        os.environ[devices.CPU_BFLOAT16] = other_units()


TRAINS = "tests/train/"
NAMED = "entry features hardware holdout imported moments moving on_a_gpu optimiser previews prototypes"
NAMED += " ranks scaling segment sharding state stopping survival teaching tracking window"
ONE_ARITHMETIC = [f"{TRAINS}test_{name}.py" for name in NAMED.split()]
"""What trains nothing or names its arithmetic; pretended GPUs ask no CPU."""
SAMPLES = ("tests/sampling/", "tests/publish/") if thorough.THOROUGH else ()
"""What samples, whose arithmetic is chosen as well; for CI, since it is seldom told apart by the CPU."""


def trains(item: pytest.Item) -> bool:
    """Whether it is run once more, as on a CPU that has what this one lacks, or lacks what it has.

    With all tests it has then run as this CPU is, as if it had bfloat16 units, and as if it had none.
    """
    return item.nodeid.startswith((TRAINS, *SAMPLES)) and item.nodeid.partition("::")[0] not in ONE_ARITHMETIC


def other_units() -> str:
    """What to pretend of this CPU, which may pretend already."""
    import torch

    return "0" if devices.has_bfloat16_units(torch.device("cpu")) else "1"


def pytest_sessionstart(session: pytest.Session) -> None:
    """What processes have in common is begun at once."""
    number, config = _abreast(session.config), session.config
    if number > 1 and not config.option.collectonly:
        factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
        config.stash[BEFOREHAND] = Beforehand(factory.mktemp("beforehand"), number + config.option.twice)


def _abreast(config: pytest.Config) -> int:
    """As many processes as are asked for, one where a process that has loaded torch cannot be forked."""
    number: int = config.option.abreast if warm.FORKS else 1
    return number


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    number, option, stash = _abreast(session.config), session.config.option, session.config.stash
    if number < 2 or option.collectonly or session.testsfailed:
        return None
    stash[TINY_RUN] = stash[BEFOREHAND].tiny()
    crews = [abreast.Crew(number, abreast.grouped(session.items, _together), stash[BEFOREHAND].hand_over)]
    if option.twice:
        again = abreast.grouped(filter(trains, session.items), _together)
        crews += [abreast.Crew(1, again, partial(_be_another, session.config), " with other units")]
    try:
        abreast.run(session, *crews)
    finally:
        stash[BEFOREHAND].close()
    return True


def _be_another(config: pytest.Config, number: int) -> None:
    """In the process that trains once more: what this CPU has made is not for it."""
    config.stash[BEFOREHAND].hand_over(number)
    del config.stash[TINY_RUN]
    config.option.other_units = True
    pytest_configure(config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where nothing is forked, what trains once more has a process of its own, after the others."""
    option = session.config.option
    if option.twice and _abreast(session.config) < 2 and not option.collectonly:
        files = sorted({item.nodeid.partition("::")[0] for item in filter(trains, session.items)})
        if files and subprocess.run([sys.executable, "-m", "pytest", "--other-units", *files]).returncode:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _together(nodeid: str) -> str:
    """The name of a file, and of the first of those that share something dear."""
    file = nodeid.partition("::")[0]
    return next((files[0] for files in TOGETHER if file in files), file)

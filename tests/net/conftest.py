"""Databases for the tests of the network: whatever holds on SQLite must hold on PostgreSQL."""

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from atoll import config
from atoll.config import validate
from atoll.launch import warm
from atoll.net import units
from atoll.net.database import Base, Database
from atoll.net.publishing import pinned
from atoll.runs import Run
from tests.net import servers, sparing
from tests.net.crowds import coordinator
from tests.net.doing import PINNED, Network


@pytest.fixture(scope="session", autouse=True)
def _made_once():
    """What all tests need and none changes."""
    with sparing.made_once():
        yield


@pytest.fixture
def sealed_are_forked(monkeypatch):
    """From whom everything is forked here, though it knows more of its surroundings than a job may."""
    monkeypatch.setattr(warm, "_fixed", lambda environment: None)


@pytest.fixture(scope="session")
def postgresql():
    with servers.postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "atoll.db")
    return request.getfixturevalue("postgresql").new()


@pytest.fixture
def database(database_url):
    """A database with all tables; of every kind in turn."""
    database = Database(database_url, patience=5)
    database.create()
    yield database
    database.close()


@pytest.fixture
def sqlite(tmp_path):
    """A database with all tables, where one kind is enough."""
    database = Database(str(tmp_path / "atoll.db"), patience=5)
    database.create()
    yield database
    database.close()


@pytest.fixture
def network(tiny, tmp_path, prepared):
    """A run with its clusters, and nothing trained yet."""
    network = Network(config.load(tiny, PINNED[1:]), tmp_path / "network")
    run = prepared(*PINNED[1:])
    for path in sorted((run.path / "partition").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            file = units.described(path, run.path)
            network.table[file.path] = file
            network.keep(run.path, [file])
    network.table["data/done.json"] = network.table["partition/done.json"]  # nobody reads it
    return network


@pytest.fixture
def session():
    """A database in memory, in a transaction that is never committed."""
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
def here(tmp_path):
    """A coordinator on a database of its own; where the kind of database matters, tests have another."""
    database = Database(str(tmp_path / "atoll.db"), patience=5)
    database.create()
    yield coordinator(database, tmp_path)
    database.close()


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """The tiny run, done once in units, each of which can be had again."""
    from tests.beforehand import TINY
    from tests.net.joined import Recorded

    folder = tmp_path_factory.mktemp("recorded")
    (folder / "tiny.toml").write_text(TINY)
    return Recorded(pinned(config.load(folder / "tiny.toml", PINNED)), folder / "network")


@pytest.fixture
def run_of_units(recorded, tmp_path):
    """The same run, of which nothing is there yet."""
    tree = recorded.network.config.model_dump(mode="json")
    run = Run(tmp_path / "runs" / "tiny", validate(tree, "a test"))
    run.path.mkdir(parents=True)
    return run

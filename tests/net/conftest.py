"""Databases for the tests of the network: whatever holds on SQLite must hold on PostgreSQL."""

import pytest

from atoll import config
from atoll.config import validate
from atoll.net.database import Database
from atoll.net.publishing import pinned
from atoll.runs import Run
from tests.net import servers
from tests.net.doing import PINNED


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


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """The tiny run, done once in units, each of which can be had again."""
    from tests.conftest import TINY
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

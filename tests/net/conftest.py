"""Databases for the tests of the network: whatever holds on SQLite must hold on PostgreSQL."""

import pytest

from atoll.net.database import Database
from tests.net import servers


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

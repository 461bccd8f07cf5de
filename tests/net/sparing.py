"""What tests of the network need again and again, made once for all of them: nothing of it holds any state.

A statement's text depends on the kind of database alone, but every engine compiles it anew; tables are the
same in every new file; every client reads all certificates of the world; every request to an application in
this process has a thread of its own.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio.from_thread
import httpx
import pytest
import sqlalchemy
from starlette.testclient import TestClient

from atoll.net import database, host, migrating, policing, restore
from atoll.net.database import Database
from tests import hasty

_first: dict[str, sqlalchemy.Engine] = {}
"""By kind of database: the engine whose compiled statements all later ones use."""


def create_engine(url: str, **options: Any) -> sqlalchemy.Engine:
    """An engine that finds statements compiled."""
    engine = sqlalchemy.create_engine(url, query_cache_size=2000, **options)
    first = _first.setdefault(engine.dialect.name, engine)
    if first.dialect.server_version_info:  # it has been connected, and knows what the server can do
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
    else:
        _first[engine.dialect.name] = engine
    return engine


def _copied(make: Callable[[Database], Any]) -> Callable[[Database], Any]:
    """Tables of a new file of SQLite are those of the first one that was made so."""

    @functools.cache
    def template() -> bytes:
        with TemporaryDirectory() as folder:
            first = Database(f"{folder}/first.db")
            make(first)
            first.close()
            return Path(folder, "first.db").read_bytes()

    def copied(database: Database) -> Any:
        file = Path(database.engine.url.database or "")
        if database.is_sqlite and not file.exists() and file.parent.is_dir():
            file.write_bytes(template())
            return ""
        return make(database)

    return copied


@contextlib.contextmanager
def made_once() -> Iterator[None]:
    """For as long as this lasts."""
    contexts = functools.cache(httpx.create_ssl_context)
    with pytest.MonkeyPatch.context() as patch, anyio.from_thread.start_blocking_portal() as portal:
        patch.setattr(database, "create_engine", create_engine)
        patch.setattr(Database, "create", _copied(Database.create))
        for room in (host, restore):
            patch.setattr(room, "migrate", _copied(migrating.migrate))
        patch.setattr("httpx._transports.default.create_ssl_context", contexts)
        patch.setattr(TestClient, "portal", portal)
        patch.setattr(policing, "ROUNDS", hasty.AFAR[policing.__name__]["ROUNDS"])
        yield

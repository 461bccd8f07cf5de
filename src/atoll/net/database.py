"""The coordinator's memory: tables, and transactions of which one writes at a time.

SQLite (WAL, `BEGIN IMMEDIATE`) by default; PostgreSQL by URL, where an advisory lock orders the
writers of several processes. What is true of one is so of the other: whoever is in `writing` is alone in it.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import DeclarativeBase, Session

from atoll.errors import AtollError, ConfigError
from atoll.runs import locks

PATIENCE = 60.0
"""Seconds that a writer waits for another one."""
WRITER = 0x41746F6C
"""The advisory lock of PostgreSQL that writers take."""


class Away(AtollError):  # noqa: N818 - a state, not a mistake
    """The database cannot be reached or is held by somebody else: nobody's fault, come back later."""


class Base(DeclarativeBase):
    """Every table of the coordinator, its log and its ledger."""

    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012 - SQLAlchemy asks for it


def address(url: str) -> str:
    """A database's URL as SQLAlchemy knows it: a path is a file of SQLite, postgresql:// is psycopg's."""
    if "://" not in url:
        return f"sqlite:///{Path(url).absolute()}"
    scheme, _, rest = url.partition("://")
    if scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        return f"postgresql+psycopg://{rest}"
    if scheme == "sqlite":
        return url
    raise ConfigError(f"--database {scheme}://… is not known; give a file, sqlite:///file or postgresql://…")


class Database:
    """An engine for readers and a way to write alone."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.url = address(url)
        self.patience = patience
        self.is_sqlite = self.url.startswith("sqlite")
        self._alone = threading.Lock()
        """Writers of this process wait here rather than by asking SQLite again and again."""
        self.engine = _sqlite(self.url, patience) if self.is_sqlite else _postgresql(self.url, patience)

    @contextlib.contextmanager
    def writing(self, durable: bool = True) -> Iterator[Session]:
        """A transaction that nobody else writes beside; committed at its end, undone by an exception.

        What is not `durable` may be lost with the machine's power, but never half of it.
        """
        if not self._alone.acquire(timeout=self.patience):
            raise Away("the database is busy")
        try:
            with self._told(), Session(self.engine, expire_on_commit=False) as session:
                if self.is_sqlite:
                    connection = session.connection()
                    connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": WRITER})
                    if not durable:
                        session.execute(text("SET LOCAL synchronous_commit = off"))
                yield session
                session.commit()
        finally:
            self._alone.release()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """A snapshot; writers do not wait for it, nor it for them."""
        with self._told(), Session(self.engine, expire_on_commit=False) as session:
            if self.is_sqlite:
                session.connection().exec_driver_sql("BEGIN")
            else:
                session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            yield session
            session.expunge_all()  # what was read stays readable
            session.rollback()

    @contextlib.contextmanager
    def claimed(self, lock: int) -> Iterator[bool]:
        """Whether this one alone of all who use the database has what a number stands for."""
        if not self.is_sqlite:
            with self.reading() as session:
                yield bool(session.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": lock}))
            return
        path = Path(f"{self.engine.url.database}.{lock:x}.lock")
        with path.open("a", encoding="ascii") as file:
            try:
                locks.locked(file, path, wait=False)
            except OSError as error:
                if error.errno not in locks.HELD:
                    raise
                yield False
                return
            yield True

    @contextlib.contextmanager
    def migrating(self) -> Iterator[Connection]:
        """A connection in one transaction beside which nobody writes, to change the tables themselves."""
        with self._told(), self.engine.connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": WRITER})
            yield connection
            connection.commit()

    def create(self) -> None:
        """All tables as they are today; who keeps a database migrates it instead."""
        with self._told():
            Base.metadata.create_all(self.engine)

    def close(self) -> None:
        """Let go of all connections."""
        self.engine.dispose()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the database says of its own state becomes `Away`; its words may hold a password."""
        try:
            yield
        except (OperationalError, InterfaceError, PoolTimeout) as error:
            raise Away("the database is away or busy") from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise Away("the database went away") from error
            raise


def _sqlite(url: str, patience: float) -> Engine:
    memory = url in ("sqlite://", "sqlite:///:memory:")
    if memory:
        raise ConfigError("a database in memory is forgotten with its process; give a file")
    engine = create_engine(url, connect_args={"timeout": patience, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def settle(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA busy_timeout={int(patience * 1000)}")

    return engine


def _postgresql(url: str, patience: float) -> Engine:
    try:
        return create_engine(
            url,
            pool_pre_ping=True,
            pool_timeout=patience,
            connect_args={
                "connect_timeout": max(2, int(min(patience, 10))),
                "options": f"-c lock_timeout={int(patience * 1000)} -c client_encoding=utf8",
            },
        )
    except ModuleNotFoundError:
        raise ConfigError("PostgreSQL needs psycopg; pip install 'atoll[postgresql]'") from None

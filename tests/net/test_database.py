"""Who writes is alone, on SQLite as on PostgreSQL; who cannot write hears that the database is away."""

import threading

import pytest
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from atoll.errors import ConfigError
from atoll.net.database import Away, Database, address


class Own(DeclarativeBase):
    pass


class Counter(Own):
    __tablename__ = "test_counter"
    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int]


@pytest.fixture
def database(database):
    Own.metadata.create_all(database.engine)
    return database


def value(database):
    with database.reading() as session:
        return session.scalars(select(Counter.value)).one()


def test_writers_of_many_threads_lose_nothing(database):
    with database.writing() as session:
        session.add(Counter(id=1, value=0))

    def add():
        for _ in range(10):
            with database.writing(durable=False) as session:
                row = session.get(Counter, 1)
                row.value += 1

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(database) == 80


def test_writers_of_two_processes_lose_nothing(database, database_url):
    """Two `Database`s share no lock of Python's, as two processes do not."""
    other = Database(database_url, patience=5)
    with database.writing() as session:
        session.add(Counter(id=1, value=0))

    def add(one):
        for _ in range(10):
            with one.writing() as session:
                session.get(Counter, 1).value += 1

    threads = [threading.Thread(target=add, args=(one,)) for one in (database, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert value(database) == 20


def test_an_exception_undoes_everything(database):
    with database.writing() as session:
        session.add(Counter(id=1, value=3))
    with pytest.raises(ZeroDivisionError), database.writing() as session:
        session.get(Counter, 1).value = 4
        session.flush()
        _ = 1 / 0
    assert value(database) == 3


def test_a_reader_sees_one_moment(database):
    with database.writing() as session:
        session.add(Counter(id=1, value=1))
    with database.reading() as session:
        before = session.scalars(select(Counter.value)).one()
        with database.writing() as other:
            other.get(Counter, 1).value = 2
        assert session.scalars(select(Counter.value)).one() == before == 1
    assert value(database) == 2


def test_a_database_that_somebody_holds_is_away(database, database_url):
    impatient = Database(database_url, patience=0.05)
    with database.writing(), pytest.raises(Away), impatient.writing():
        pass
    with impatient.writing() as session:
        session.add(Counter(id=1, value=1))
    impatient.close()
    assert value(database) == 1


def test_a_server_that_is_not_there_is_away_and_tells_no_secret(tmp_path):
    database = Database(f"postgresql://user:hush@/x?host={tmp_path}", patience=0.1)
    with pytest.raises(Away) as caught, database.reading():
        pass
    assert "hush" not in str(caught.value)


def test_addresses():
    assert address("sqlite:///a.db") == "sqlite:///a.db"
    assert address("a.db").startswith("sqlite:////")
    assert address("postgres://h/db") == "postgresql+psycopg://h/db"
    with pytest.raises(ConfigError, match="mysql"):
        address("mysql://h/db")
    with pytest.raises(ConfigError, match="memory"):
        Database("sqlite://")

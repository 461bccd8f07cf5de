"""Databases of every version become those of today, and what migrations make is what the models say."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from atoll.errors import RunError
from atoll.net import migrating
from atoll.net.database import Base, Database
from atoll.net.migrating import FIRST, migrate
from atoll.net.tables import Setting

ADVICE = "models and migrations differ: run `python -m atoll.net.migrating 'what is new'` and commit its file"
RULES = {
    "sqlite": "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT trigger_name, event_object_table FROM information_schema.triggers",
}


@pytest.fixture
def empty(database_url):
    database = Database(database_url, patience=5)
    yield database
    database.close()


def rules(database):
    with database.engine.connect() as connection:
        return sorted({tuple(row) for row in connection.execute(text(RULES[database.engine.dialect.name]))})


def differences(database):
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, Base.metadata)


def test_migrations_make_what_the_models_say(empty):
    assert migrate(empty) == ""
    assert differences(empty) == [], ADVICE
    with empty.writing() as session:
        session.add(Setting(name="a", value={"b": 1}))


def test_rows_that_may_not_change_may_not_after_migrations_either(empty, request, tmp_path):
    """Triggers are not compared by Alembic: a migration that makes an append-only table makes its rules."""
    migrate(empty)
    other = request.getfixturevalue("postgresql").new() if not empty.is_sqlite else str(tmp_path / "two.db")
    made = Database(other, patience=5)
    made.create()
    assert rules(empty) == rules(made) and len(rules(made)) >= 3
    made.close()
    insert = "INSERT INTO log_entries VALUES (0, 'x', '', '', 0)"
    with empty.engine.begin() as connection:
        connection.execute(text(insert))
    with pytest.raises(DatabaseError, match="append-only"), empty.engine.begin() as connection:
        connection.execute(text("DELETE FROM log_entries"))


def test_a_database_from_before_migrations_opens_and_keeps_what_it_holds(empty):
    """Such a one has the tables of the first migration, and nothing that says so."""
    with empty.migrating() as connection:
        command.upgrade(migrating._config(connection), FIRST)
        connection.execute(text("DROP TABLE alembic_version"))
        connection.execute(text("INSERT INTO settings VALUES ('manifest', '{\"text\": \"kept\"}')"))
    assert migrate(empty) == FIRST
    assert differences(empty) == [], ADVICE
    with empty.reading() as session:
        assert session.get(Setting, "manifest").value == {"text": "kept"}
    assert migrate(empty) != "", "the second time it knows"


def test_a_database_of_a_newer_program_is_refused(empty):
    migrate(empty)
    with empty.migrating() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(RunError, match="newer atoll .*9999.*update"):
        migrate(empty)


def test_two_that_start_at_once_make_one_set_of_tables(empty, database_url):
    other, problems = Database(database_url, patience=20), []

    def start(database):
        try:
            migrate(database)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=start, args=(one,)) for one in (empty, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert not problems and differences(empty) == []


def test_a_failed_migration_leaves_what_was_there(empty, monkeypatch):
    monkeypatch.setattr(command, "upgrade", lambda config, where: 1 / 0)
    with empty.migrating() as connection:
        connection.execute(text("CREATE TABLE settings (name VARCHAR(40))"))
    with pytest.raises(ZeroDivisionError):
        migrate(empty)
    monkeypatch.undo()
    with empty.engine.connect() as connection:
        assert not empty.engine.dialect.has_table(connection, "alembic_version"), "not even half a stamp"


def test_a_change_of_the_models_is_written_down(tmp_path, monkeypatch):
    """In a copy of the migrations, with one column more than they make."""
    code = (
        "import shutil, sys; from pathlib import Path; from atoll.net import migrating, tables\n"
        "from sqlalchemy import Column, Integer\n"
        "place = Path(sys.argv[1]) / 'migrations'; shutil.copytree(migrating.HERE, place)\n"
        "migrating.HERE = place; tables.Setting.__table__.append_column(Column('more', Integer()))\n"
        "print(migrating.write('One more column'))"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    path = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    count = len(list((migrating.HERE / "versions").glob("m*.py")))
    assert path.endswith(f"m{count + 1:04d}_one_more_column.py")
    made = Path(path).read_text()
    assert "'more'" in made and f'down_revision = "{count:04d}"' in made
    assert made.startswith('"""One more column."""')

"""A database brought to the tables of today, whatever version made it: by Alembic, alone, all or nothing.

Tables are described once, by the models. `python -m atoll.net.migrating "what is new"` writes down how they
differ from what the migrations make; whoever changes a model commits that file with it.
"""

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, inspect

from atoll.errors import RunError
from atoll.net import ledger, log, tables
from atoll.net.database import Database

HERE = Path(__file__).with_name("migrations")
FIRST = "0001"
"""The tables of databases that were made before there were migrations."""
MODELS = (log, ledger, tables)
"""Where tables are described: they must be imported to be known."""


def migrate(database: Database) -> str:
    """Bring a database to the tables of today, or make them; the revision that it had, empty for none."""
    with database.migrating() as connection:
        config = _config(connection)
        before = MigrationContext.configure(connection).get_current_revision() or ""
        if not before and inspect(connection).has_table(tables.Setting.__tablename__):
            command.stamp(config, FIRST)
            before = FIRST
        try:
            command.upgrade(config, "head")
        except CommandError:
            raise RunError(
                f"the database was made by a newer atoll (its tables are of revision {before}); update atoll"
            ) from None
    return before


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def write(message: str) -> Path:
    """Write down how the models differ from what the migrations make; the file, to be read and committed."""
    with TemporaryDirectory(prefix="atoll-migration-") as folder:
        database = Database(str(Path(folder) / "empty.db"))
        migrate(database)
        with database.migrating() as connection:
            config = _config(connection)
            scripts = ScriptDirectory.from_config(config)
            number = f"{len(list(scripts.walk_revisions())) + 1:04d}"
            words = "_".join(re.findall(r"[a-z0-9]+", message.lower()))[:40]
            command.revision(config, message, autogenerate=True, rev_id=number)
        database.close()
    (made,) = (HERE / "versions").glob(f"{number}_*.py")
    return made.rename(made.with_name(f"m{number}_{words}.py"))


if __name__ == "__main__":
    sys.stdout.write(f"{write(' '.join(sys.argv[1:]))}\n")

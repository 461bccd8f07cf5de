"""A real PostgreSQL for tests: Debian's, or the one inside the wheel of pgserver."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy


def programs() -> Path:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if debian:
        return debian[-1].parent
    spec = importlib.util.find_spec("pgserver")
    return Path(spec.origin).parent / "pginstall" / "bin"


class PostgreSQL:
    """A server that answers on a socket of its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user)
        self._run("initdb", "-D", "data", "-U", "atoll", "-A", "trust", "--no-sync", "-E", "UTF8")
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        with (self.folder / "log").open("a") as log:
            subprocess.run(
                [programs() / program, *arguments],
                cwd=self.folder,
                user=self.user,
                stdout=log,
                stderr=log,
                check=True,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            )

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c max_connections=50"
        self._run("pg_ctl", "-D", "data", "-w", "-o", options, "-l", "server.log", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "-w", "stop")

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://atoll@/{name}?host={self.folder}"

    def new(self) -> str:
        """The URL of an empty database."""
        name = f"atoll_{uuid.uuid4().hex[:12]}"
        engine = sqlalchemy.create_engine(
            self.url().replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self.url(name)


@contextlib.contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    folder = Path(tempfile.mkdtemp(prefix="atoll-pg-"))
    server = PostgreSQL(folder)
    try:
        yield server
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)

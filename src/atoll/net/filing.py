"""The run's files in the database: put in place by results that are taken, put back where one was false."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from atoll.net.protocol import File, Result
from atoll.net.tables import PathRow, Setting

TABLE = "table"
"""The setting that counts changes of the run's files."""


def apply(session: Session, result: Result) -> dict[str, Any]:
    """Make a result's files the run's; what was there before, to be put back if it turns out to be false."""
    before: dict[str, Any] = {}
    for path in {*result.removed, *(file.path for file in result.outputs)}:
        row = session.get(PathRow, path)
        before[path] = None if row is None else {"sha256": row.sha256, "size": row.size}
    if result.removed:
        session.execute(delete(PathRow).where(PathRow.path.in_(result.removed)))
        session.expire_all()
    for file in result.outputs:
        session.merge(PathRow(path=file.path, sha256=file.sha256, size=file.size))
    count(session)
    return before


def put_back(session: Session, before: Mapping[str, Any]) -> None:
    """Undo `apply`; of several results the newest first."""
    gone = [path for path, entry in before.items() if entry is None]
    session.execute(delete(PathRow).where(PathRow.path.in_(gone)))
    session.expire_all()
    for path, entry in before.items():
        if entry is not None:
            session.merge(PathRow(path=path, sha256=entry["sha256"], size=entry["size"]))
    count(session)


def table_of(session: Session) -> dict[str, File]:
    """The run's files."""
    rows = session.execute(select(PathRow.path, PathRow.sha256, PathRow.size)).all()
    return {path: File.model_construct(path=path, sha256=sha256, size=size) for path, sha256, size in rows}


def add_files(session: Session, files: Mapping[str, File]) -> None:
    """Files that the run begins with."""
    for file in files.values():
        session.merge(PathRow(path=file.path, sha256=file.sha256, size=file.size))
    count(session)


def count(session: Session) -> int:
    """The run's files have changed; how often."""
    row = session.get(Setting, TABLE)
    if row is None:
        row = Setting(name=TABLE, value={"version": 0})
        session.add(row)
    row.value = {"version": row.value["version"] + 1}
    return int(row.value["version"])

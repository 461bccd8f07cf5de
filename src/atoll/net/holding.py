"""Files that the store has lost come back from whoever holds them.

Every worker keeps what it has read and made, up to the disk that it lends, and says now and then which files
those are. The coordinator looks after the run's files, some at a time; one that is gone from the store counts
as never received, so that nobody is sent in vain, and whoever says that it has it is asked to send it again.
That needs no trust: a file is named by its hash, and is checked when it comes, as any other.
"""

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from atoll.errors import AtollError, Interrupted
from atoll.net.artifacts import name_of
from atoll.net.protocol import File, Reconcile
from atoll.net.tables import BlobRow, PathRow, happened
from atoll.storage.patience import Fault

if TYPE_CHECKING:
    from atoll.net.coordinator import Coordinator
    from atoll.net.turn import Machine

LOOK = 20
"""Files of the run that are looked after at a time."""
MOST = 4096
"""Files that a worker tells of."""


class Care:
    """Looks after the run's files, from the first to the last and again."""

    def __init__(self) -> None:
        self._last = ""
        self._lost: dict[str, str] = {}
        """Paths of what was lost, by digest."""

    def look(self, here: "Coordinator", count: int = LOOK) -> dict[str, str]:
        """Look at the next files, and whether what was lost is back; what is lost now, by digest."""
        store = here.artifacts.store
        with here.database.reading() as session:
            rows = select(PathRow.path, PathRow.sha256).order_by(PathRow.path).limit(count)
            files = session.execute(rows.where(PathRow.path > self._last)).all()
            lost = missing(session)
        self._last = files[-1].path if len(files) == count else ""
        seen = {row.sha256: row.path for row in files if row.sha256 not in lost}
        gone = {digest: path for digest, path in seen.items() if not store.exists(name_of(digest))}
        there = [digest for digest in list(lost)[:count] if store.exists(name_of(digest))]
        if gone:
            store.check()  # one that is away as a whole has lost nothing
        before, self._lost = self._lost, {**lost, **gone}
        for digest in there:
            del self._lost[digest]
        back = [path for digest, path in before.items() if digest not in self._lost]
        if gone or there or back:
            self._tell(here, gone, there, back)
        return self._lost

    def _tell(self, here: "Coordinator", gone: dict[str, str], there: list[str], back: list[str]) -> None:
        """Write down what is gone from the store, what is there again by itself, and that people may know."""
        now = here.clock.date()
        with here.database.writing() as session:
            session.execute(delete(BlobRow).where(BlobRow.sha256.in_(gone)))
            sizes = select(PathRow.sha256, PathRow.size).where(PathRow.sha256.in_(there)).distinct()
            for sha256, size in session.execute(sizes).all():
                session.merge(BlobRow(sha256=sha256, size=size, account="", created=now))
            for path in gone.values():
                happened(session, now, "file_lost", path=path)
            for path in back:
                happened(session, now, "file_restored", path=path)


def missing(session: Session, digests: Iterable[str] | None = None) -> dict[str, str]:
    """Paths of the run's files that are not here, by digest; of some digests alone, if they are given."""
    rows = select(PathRow.sha256, PathRow.path).outerjoin(BlobRow, BlobRow.sha256 == PathRow.sha256)
    rows = rows.where(BlobRow.sha256.is_(None))
    if digests is not None:
        rows = rows.where(PathRow.sha256.in_(list(digests)))
    return {row.sha256: row.path for row in session.execute(rows)}


def give(machine: "Machine") -> list[str]:
    """Tell the coordinator what is here, and send what it has lost; digests of that."""
    held = machine.home.files()
    sent: list[str] = []
    if not held:
        return sent
    with contextlib.suppress(AtollError, Interrupted, Fault, OSError):  # another time
        advice = machine.client.reconcile(Reconcile(files=tuple(held)[:MOST])).files
        for sha256 in (one for one, word in advice.items() if word == "submit"):
            file = File(path=f"files/{sha256}", sha256=sha256, size=held[sha256])
            machine.tell.news(
                f"the coordinator has lost a file that is here; sending {file.size / 1e6:.1f} MB"
            )
            machine.client.upload(machine.home.place(sha256), file)
            sent.append(sha256)
    return sent

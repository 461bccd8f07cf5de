"""The log of a run: every fact as a signed statement, written in the transaction that makes it true.

A publisher copies what is committed to the artifact store as static files; it may be killed anywhere and is
called again. A receipt promises that a statement will be there by a deadline: one that is not is evidence.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import DDL, LargeBinary, String, event, func, select
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Mapped, Session, mapped_column

from atoll.errors import ConfigError, CorruptError
from atoll.net import notes, statements, tiles, tree
from atoll.net.crash import crash_point
from atoll.net.database import Base, Database
from atoll.net.notes import Checkpoint
from atoll.net.statements import Signer
from atoll.storage.store import Store

FOLDER = "log"
"""Where the files of the log lie in the artifact store."""
MERGE_DELAY = 300
"""Seconds within which a statement must be in the published log."""
PUBLISHER = 0x41746F6D
"""What publishers claim of the database: one of several processes publishes."""
AGAIN = "start anew from what was published: `atoll host --from STORE`"

logger = logging.getLogger(__name__)


def append_only(table: type[Base]) -> None:
    """Let the database itself refuse to change or remove rows of a table, whoever asks."""
    name = table.__tablename__
    for action in ("UPDATE", "DELETE"):
        refusal = (
            f"CREATE TRIGGER {name}_no_{action.lower()} BEFORE {action} ON {name} "
            f"BEGIN SELECT RAISE(ABORT, '{name} is append-only'); END"
        )
        _after_create(table, refusal, "sqlite")
    function = (
        f"CREATE OR REPLACE FUNCTION {name}_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{name} is append-only'; END $$"
    )
    trigger = (
        f"CREATE TRIGGER {name}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {name} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {name}_refuse()"
    )
    for command in (function, trigger):
        _after_create(table, command, "postgresql")


def _after_create(table: type[Base], command: str, dialect: str) -> None:
    rule = DDL(command).execute_if(dialect=dialect)  # type: ignore[no-untyped-call]
    event.listen(table.__table__, "after_create", rule)


class Entry(Base):
    """One statement, at its place; never changed, never removed."""

    __tablename__ = "log_entries"

    index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(32), index=True)
    leaf: Mapped[bytes] = mapped_column(LargeBinary(32))
    envelope: Mapped[bytes] = mapped_column(LargeBinary)
    at: Mapped[float]


append_only(Entry)


def append(session: Session, kind: str, facts: Mapping[str, Any], signer: Signer, at: float) -> int:
    """State a fact in the transaction of `session`; the index of its entry.

    `at` is Unix seconds. Whoever writes is alone (`Database.writing`), so that indices have no gaps.
    """
    envelope = signer.envelope(kind, facts, at)
    if len(envelope) > statements.LARGEST:
        raise ConfigError(
            f"a statement of kind {kind} has {len(envelope):,} bytes; name large things by digest"
        )
    index = size(session)
    session.add(Entry(index=index, kind=kind, leaf=tree.leaf_hash(envelope), envelope=envelope, at=at))
    session.flush()
    return index


def size(session: Session) -> int:
    """How many entries the log has."""
    last = session.scalar(select(func.max(Entry.index)))
    return 0 if last is None else last + 1


def receipt(session: Session, index: int, signer: Signer, at: float) -> bytes:
    """A signed promise that an entry will be in the published log in time."""
    entry = session.get_one(Entry, index)
    facts = {"index": index, "leaf": entry.leaf.hex(), "deadline": at + MERGE_DELAY}
    return signer.envelope("receipt", facts, at)


def kept(promise: statements.Statement, reader: tiles.Reader, now: float) -> bool | None:
    """Whether a log keeps the promise of a receipt; None where its time has not come."""
    index, leaf = promise.facts["index"], bytes.fromhex(promise.facts["leaf"])
    if index < reader.size:
        return tree.leaf_hash(reader.entry(index)) == leaf
    return None if now < promise.facts["deadline"] else False


def check(session: Session) -> int:
    """The size of the log in the database, every entry of which is at its place and as it was hashed."""
    rows = session.execute(select(Entry.index, Entry.leaf, Entry.envelope).order_by(Entry.index))
    count = 0
    try:
        for index, leaf, envelope in rows:
            if index != count:
                raise CorruptError(f"entry {count} of the log is missing in the database; {AGAIN}")
            if envelope is None or tree.leaf_hash(envelope) != leaf:  # cut off, a database may read as empty
                raise CorruptError(f"entry {index} of the log was changed in the database; {AGAIN}")
            count += 1
    except DatabaseError as error:
        raise _unreadable(error) from None
    return count


def _unreadable(error: DatabaseError) -> CorruptError:
    reason = str(error.orig or error).splitlines()[0]
    return CorruptError(f"the database cannot be read ({reason}); {AGAIN}")


class _Level:
    """The hashes of one level of tiles from some tile on: those before it are written and full."""

    def __init__(self) -> None:
        self.hashes: list[bytes] = []
        self._base = 0

    def parts(self, first: int) -> Iterator[tuple[int, list[bytes]]]:
        """Tiles from an index on."""
        for at in range((first - self._base) * tiles.WIDTH, len(self.hashes), tiles.WIDTH):
            yield self._base + at // tiles.WIDTH, self.hashes[at : at + tiles.WIDTH]

    def drop_full(self) -> None:
        """Forget tiles that never change again."""
        full = len(self.hashes) // tiles.WIDTH
        self._base += full
        del self.hashes[: full * tiles.WIDTH]


class Publisher:
    """Copies the log of a database to static files; remembers where it was, and finds out if it does not."""

    def __init__(self, database: Database, store: Store, key: Ed25519PrivateKey, origin: str) -> None:
        self._database, self._store, self._key, self._origin = database, store, key, origin
        self._alone = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        """Look at everything again, as at the start."""
        self._frontier = tree.Frontier()
        self._levels: list[_Level] = []
        self._checked = False

    def publish(self) -> Checkpoint | None:
        """Make files of all that is committed; the checkpoint, or None where another process is at it."""
        with self._alone:
            try:
                return self._publish_alone()
            except DatabaseError as error:
                self._forget()
                raise _unreadable(error) from None
            except BaseException:
                self._forget()
                raise

    def _publish_alone(self) -> Checkpoint | None:
        with self._database.claimed(PUBLISHER) as alone:
            if not alone:
                return None
            with self._database.reading() as session:  # a snapshot from after the lock
                return self._publish(session)

    def _publish(self, session: Session) -> Checkpoint:
        published = self._published()
        if published is None or published.size < self._frontier.size:
            self._forget()
        total = size(session) if self._checked else check(session)
        if published is not None and total < published.size:
            raise CorruptError(
                f"the database has {total} entries of the log and {published.size} were published: it is an "
                f"older copy or was cut off; {AGAIN}"
            )
        if published is None and self._beyond(total):
            raise CorruptError(f"the published log has entries that the database has not; {AGAIN}")
        first = published.size if published is not None and self._checked else 0
        if self._frontier.size < total or not self._checked:
            self._extend(session, total, published)
            self._write_tiles(session, first, total)
        self._checked = True
        checkpoint = Checkpoint(self._origin, total, self._frontier.root())
        if checkpoint != published:
            crash_point("log.publish.before-checkpoint")
            self._put(tiles.CHECKPOINT, notes.signed(checkpoint, self._key))
            crash_point("log.publish.after-checkpoint")
            self._tidy(first, total)
        return checkpoint

    def _published(self) -> Checkpoint | None:
        """The last checkpoint, None where there is none that can be read: files tell more then."""
        note = self._store.read(f"{FOLDER}/{tiles.CHECKPOINT}")
        if note is None:
            return None
        try:
            checkpoint = notes.opened(note, notes.public_hex(self._key))
        except CorruptError as error:
            logger.warning("%s; it is made again from the database", error)
            return None
        if checkpoint.origin != self._origin:
            raise CorruptError(
                f"{self._store.address} holds the log of {checkpoint.origin}; give another store"
            )
        return checkpoint

    def _beyond(self, total: int) -> bool:
        """Whether files tell of entries that the database has not."""
        for name in self._store.names(f"{FOLDER}/tile/entries"):
            parts = name.removeprefix(f"{FOLDER}/tile/entries/").split("/")
            width = int(parts.pop()) if parts[-2:-1] and parts[-2].endswith(".p") else tiles.WIDTH
            number = int("".join(part.removesuffix(".p").removeprefix("x") for part in parts))
            if number * tiles.WIDTH + width > total:
                return True
        return False

    def _extend(self, session: Session, total: int, published: Checkpoint | None) -> None:
        """Hash what is new; on the way the tree must be the published one where it has that size."""
        new = select(Entry.leaf).where(Entry.index >= self._frontier.size).order_by(Entry.index)
        for leaf in session.scalars(new):
            self._frontier.append(leaf)
            self._grow(0, leaf)
            same_size = published is not None and self._frontier.size == published.size
            if published is not None and same_size and self._frontier.root() != published.root:
                raise CorruptError(
                    f"the database's first {published.size} entries are not the published ones; {AGAIN}"
                )
        if self._frontier.size != total:
            raise CorruptError(f"entries of the log are missing in the database; {AGAIN}")

    def _grow(self, level: int, digest: bytes) -> None:
        if level == len(self._levels):
            self._levels.append(_Level())
        hashes = self._levels[level].hashes
        hashes.append(digest)
        if len(hashes) % tiles.WIDTH == 0:
            self._grow(level + 1, tree.root(hashes[-tiles.WIDTH :]))

    def _write_tiles(self, session: Session, first: int, total: int) -> None:
        for index in range(first // tiles.WIDTH, -(-total // tiles.WIDTH)):
            rows = select(Entry.envelope).where(
                Entry.index >= index * tiles.WIDTH, Entry.index < min(total, (index + 1) * tiles.WIDTH)
            )
            entries = session.scalars(rows.order_by(Entry.index)).all()
            self._put(tiles.path("entries", index, len(entries)), tiles.bundle(entries))
            crash_point("log.publish.bundle")
        for level, row in enumerate(self._levels):
            for index, part in row.parts((first >> (8 * level)) // tiles.WIDTH):
                self._put(tiles.path(level, index, len(part)), b"".join(part))
                crash_point("log.publish.tile")
            row.drop_full()

    def _put(self, name: str, data: bytes) -> None:
        """Write a file of the log, unless it is there already and the same."""
        if self._store.read(f"{FOLDER}/{name}") != data:
            self._store.write(f"{FOLDER}/{name}", data)

    def _tidy(self, first: int, total: int) -> None:
        """Remove the beginnings of tiles that are full now."""
        for level in ["entries", *range(len(self._levels))]:
            scale = 0 if level == "entries" else 8 * int(level)
            for index in range((first >> scale) // tiles.WIDTH, (total >> scale) // tiles.WIDTH):
                folder = f"{FOLDER}/{tiles.path(level, index)}.p"
                self._store.delete(self._store.names(folder))

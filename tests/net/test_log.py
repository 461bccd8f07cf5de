"""The log: written with the fact, published as files that another program reads, never silently shorter."""

import os
import shutil
import sqlite3
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError
from tlog_scales import backend, reader, signing

from atoll.errors import AtollError, ConfigError, CorruptError
from atoll.net import log, notes, statements, tiles, tree
from atoll.net.database import Database
from atoll.net.statements import Signer
from atoll.storage.folder import FolderStore

KEY, LOG_KEY = (Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
SIGNER = Signer(KEY, "ab" * 32)
ORIGIN = "run.example/log"


@pytest.fixture
def database(tmp_path):
    """SQLite alone: files that are cut off are what these tests are about."""
    made = Database(str(tmp_path / "a.db"))
    made.create()
    yield made
    made.close()


class MemoryStore:
    """What the publisher needs of a store, without a disk that must be waited for."""

    address = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def names(self, under: str = "") -> list[str]:
        return sorted(name for name in self.files if name.startswith(under))

    def delete(self, names) -> None:
        for name in names:
            del self.files[name]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def publisher(database, store) -> log.Publisher:
    return log.Publisher(database, store, LOG_KEY, ORIGIN)


def state(database: Database, count: int, first: int = 0) -> None:
    with database.writing() as session:
        for number in range(first, first + count):
            log.append(session, "lease", {"lease": f"l{number}"}, SIGNER, 1000.0 + number)


def files(store) -> dict[str, bytes]:
    return {name: store.read(name) for name in store.names()}


def fetch(store) -> tiles.Fetch:
    return lambda name: store.read(f"log/{name}")


def test_a_fact_that_is_undone_is_not_in_the_log(database):
    state(database, 2)
    with pytest.raises(ZeroDivisionError), database.writing() as session:
        assert log.append(session, "lease", {}, SIGNER, 1.0) == 2
        _ = 1 / 0
    with database.writing() as session:
        assert log.append(session, "outage", {"since": 1}, SIGNER, 2.0) == 2
        assert log.size(session) == log.check(session) == 3


def test_large_things_are_named_by_digest(database):
    with pytest.raises(ConfigError, match="by digest"), database.writing() as session:
        log.append(session, "manifest", {"manifest": "x" * 60_000}, SIGNER, 0.0)


def test_nobody_changes_or_removes_an_entry(database):
    state(database, 1)
    for command in ("UPDATE log_entries SET kind = 'x'", "DELETE FROM log_entries"):
        with pytest.raises(DatabaseError, match="append-only"), database.writing() as session:
            session.execute(text(command))


def test_a_second_implementation_reads_what_is_published(database, tmp_path):
    store = FolderStore(str(tmp_path / "store"))
    publish = publisher(database, store)
    for count in (0, 1, 2, 253, 44, 300):
        state(database, count)
        checkpoint = publish.publish()
    other = reader.TilesReader(backend.LocalBackend(tmp_path / "store" / "log"))
    theirs = other.get_checkpoint()
    theirs.verify(signing.Vkey.from_string(notes.verifier_key(ORIGIN, notes.public_hex(LOG_KEY))))
    assert (
        (theirs.size, theirs.root_hash)
        == (checkpoint.size, checkpoint.root)
        == (600, other.calculate_root_hash())
    )
    with database.reading() as session:
        for index in (0, 255, 256, 599):
            assert other.get_entry(index) == session.get_one(log.Entry, index).envelope
    kept = [name for name in store.names() if ".p/" in name]
    assert [name for name in kept if "/1/" not in name] == [
        "log/tile/0/002.p/88",
        "log/tile/entries/002.p/88",
    ]


def test_files_do_not_depend_on_how_often_one_published(database, store, tmp_path):
    often, once = publisher(database, store), MemoryStore()
    for _ in range(26):
        state(database, 20)
        often.publish()
    publisher(database, once).publish()
    final = {name: data for name, data in files(store).items() if name in once.names()}
    assert final == files(once)


def test_publishing_again_writes_nothing(database, store, monkeypatch):
    state(database, 300)
    publish = publisher(database, store)
    publish.publish()
    monkeypatch.setattr(MemoryStore, "write", lambda *_: pytest.fail("written again"))
    assert publish.publish() == publisher(database, store).publish()


def test_what_fails_on_the_way_is_done_again(database, store, monkeypatch):
    """The store may be away at any request; a checkpoint never tells of files that are not there."""
    write = MemoryStore.write
    for failing in range(1, 8):
        count = 0

        def away(self, name, data, failing=failing):
            nonlocal count
            count += 1
            if count == failing:
                raise ConnectionError
            write(self, name, data)

        state(database, 100)
        monkeypatch.setattr(MemoryStore, "write", away)
        publish = publisher(database, store)
        try:
            publish.publish()
        except ConnectionError:
            note = store.read("log/checkpoint")
            if note is not None:
                before = notes.opened(note, notes.public_hex(LOG_KEY))
                assert tiles.Reader(fetch(store), before.size).root() == before.root
        monkeypatch.setattr(MemoryStore, "write", write)
        checkpoint = publish.publish()
        assert tiles.Reader(fetch(store), checkpoint.size).root() == checkpoint.root


def test_a_receipt_is_kept_or_proves_that_it_was_not(database, store):
    state(database, 3)
    with database.writing() as session:
        index = log.append(session, "result", {"submission": "s"}, SIGNER, 50.0)
        promise = statements.opened(log.receipt(session, index, SIGNER, 50.0), {SIGNER.public})
    assert promise.facts["deadline"] == 350.0
    checkpoint = publisher(database, store).publish()
    read = tiles.Reader(fetch(store), checkpoint.size)
    assert log.kept(promise, read, 60.0) is True
    shorter = tiles.Reader(fetch(store), 3)
    assert log.kept(promise, shorter, 60.0) is None
    assert log.kept(promise, shorter, 351.0) is False
    other = statements.Statement("receipt", "", 0, {**promise.facts, "leaf": "00" * 32})
    assert log.kept(other, read, 60.0) is False


def test_a_database_that_is_older_or_other_than_the_log_is_refused(database, store, tmp_path):
    state(database, 5)
    older = tmp_path / "older.db"
    with sqlite3.connect(tmp_path / "a.db") as source, sqlite3.connect(older) as target:
        source.backup(target)
    state(database, 5)
    publisher(database, store).publish()
    copy = Database(str(older))
    with pytest.raises(CorruptError, match="has 5 entries of the log and 10 were published"):
        publisher(copy, store).publish()
    state(copy, 7, first=100)
    with pytest.raises(CorruptError, match="are not the published ones"):
        publisher(copy, store).publish()
    store.delete(["log/checkpoint"])
    with copy.writing() as session:
        session.execute(text("DROP TRIGGER log_entries_no_delete"))
        session.execute(text('DELETE FROM log_entries WHERE "index" >= 4'))
    with pytest.raises(CorruptError, match="entries that the database has not"):
        publisher(copy, store).publish()
    copy.close()


def test_entries_that_were_changed_in_the_database_are_named(database):
    state(database, 4)
    with database.writing() as session:
        session.execute(text("DROP TRIGGER log_entries_no_update"))
        session.execute(text("DROP TRIGGER log_entries_no_delete"))
        session.execute(text("UPDATE log_entries SET envelope = x'00' WHERE \"index\" = 2"))
    with database.reading() as session, pytest.raises(CorruptError, match="entry 2 of the log was changed"):
        log.check(session)
    with database.writing() as session:
        session.execute(text('DELETE FROM log_entries WHERE "index" = 1'))
    with database.reading() as session, pytest.raises(CorruptError, match="entry 1 of the log is missing"):
        log.check(session)


def stride(usual: int) -> int:
    """Bytes from one cut to the next; ATOLL_EVERY_BYTE=1 asks for every offset, N for every Nth."""
    return int(os.environ.get("ATOLL_EVERY_BYTE", usual))


def outcome(database: Database, store: MemoryStore, whole: dict[str, bytes]) -> str:
    """What a restart makes of it: the whole log, or a reason."""
    try:
        checkpoint = publisher(database, store).publish()
    except AtollError as error:
        return str(error)
    assert checkpoint.size == 20
    assert files(store) == whole
    return "whole"


def test_files_of_the_log_that_are_cut_off_anywhere_are_made_again(database, store):
    state(database, 20)
    publisher(database, store).publish()
    whole = files(store)
    for name, data in whole.items():
        for length in range(0, len(data), 1 if name.endswith("checkpoint") else stride(41)):
            store.write(name, data[:length])
            assert outcome(database, store, whole) == "whole", (name, length)


def test_an_entry_that_reads_as_nothing_is_refused():
    """What SQLite gives of a value whose end was cut off with the file, though the column forbids it."""
    rows = SimpleNamespace(execute=lambda _: [(0, bytes(32), None)])
    with pytest.raises(CorruptError, match="entry 0 of the log was changed in the database"):
        log.check(rows)


def test_a_database_that_is_cut_off_anywhere_is_whole_or_refused(database, store, tmp_path):
    """Every page boundary and offsets around it; a prime step in between: within a page SQLite sees no other.

    ATOLL_EVERY_BYTE says so more often, here and below.
    """
    state(database, 20)
    publisher(database, store).publish()
    database.close()
    whole = files(store)
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = (tmp_path / "a.db").read_bytes()
    reasons = set()
    meant = len(data.rstrip(b"\0"))  # SQLite reads what is missing of the last page as zeros
    lengths = {
        meant,
        *range(0, len(data), stride(509)),
        *(page + by for page in range(0, len(data), 4096) for by in (-1, 0, 1)),
    }
    for length in sorted(length for length in lengths if 0 <= length < len(data)):
        path = tmp_path / "cut.db"
        path.write_bytes(data[:length])
        cut = Database(str(path), patience=0.1)
        reason = outcome(cut, store, whole)
        assert (reason == "whole") == (length >= meant), (length, reason)
        reasons.add(reason)
        cut.close()
        assert files(store) == whole, length
        for name in tmp_path.glob("cut.db*"):
            name.unlink()
    assert all(len(reason) < 300 for reason in reasons)
    shutil.copyfile(tmp_path / "a.db", tmp_path / "cut.db")
    assert outcome(Database(str(tmp_path / "cut.db")), store, whole) == "whole"


def test_a_write_ahead_log_that_is_cut_off_anywhere_is_whole_or_refused(database, store, tmp_path):
    """A machine without power: what was committed last may be gone, and then the published log tells."""
    state(database, 10)
    state(database, 10, first=10)
    publisher(database, store).publish()
    whole = files(store)
    main, ahead = (tmp_path / "a.db").read_bytes(), (tmp_path / "a.db-wal").read_bytes()
    outcomes = set()
    for length in range(0, len(ahead), stride(1031)):
        path = tmp_path / "cut.db"
        path.write_bytes(main)
        (tmp_path / "cut.db-wal").write_bytes(ahead[:length])
        cut = Database(str(path), patience=0.1)
        outcomes.add(outcome(cut, store, whole))
        cut.close()
        assert files(store) == whole
        for name in tmp_path.glob("cut.db*"):
            name.unlink()
    assert any("entries of the log and 20 were published" in reason for reason in outcomes)


def test_hashes_are_those_of_the_envelopes(database, store):
    state(database, 3)
    checkpoint = publisher(database, store).publish()
    envelopes = [SIGNER.envelope("lease", {"lease": f"l{number}"}, 1000.0 + number) for number in range(3)]
    assert checkpoint.root == tree.root([tree.leaf_hash(one) for one in envelopes])

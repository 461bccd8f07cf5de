"""Downloads from something that is no store at all: pieces of bytes."""

import errno
import fcntl
import hashlib
import os

import pytest

from atoll.errors import CorruptError
from atoll.storage import download as room
from atoll.storage.download import Download

DATA = os.urandom(45_000)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def source(events, monkeypatch):
    """A download that notes which pieces it asks for, and may be changed."""
    monkeypatch.setattr(room, "CHUNK", 10_000)

    def make(piece=lambda start, end: DATA[start:end]):
        asked = []

        def ask(start, end):
            asked.append((start, end))
            return piece(start, end)

        one = Download("s3://x/file", lambda: len(DATA), ask, lambda kind, **facts: events.append(facts))
        return one, asked

    return make


def test_piece_by_piece(source, tmp_path):
    one, asked = source()
    one.to(tmp_path / "a" / "file", SHA)
    assert (tmp_path / "a" / "file").read_bytes() == DATA
    assert asked == [(0, 10_000), (10_000, 20_000), (20_000, 30_000), (30_000, 40_000), (40_000, 45_000)]
    one.to(tmp_path / "a" / "file", SHA)
    assert len(asked) == 5, "what is here is not brought again"


def test_it_goes_on_where_it_stopped(source, tmp_path):
    class GoneError(Exception):
        pass

    def broken(start, end):
        if start >= 20_000:
            raise GoneError
        return DATA[start:end]

    with pytest.raises(GoneError):
        source(broken)[0].to(tmp_path / "file", SHA)
    assert not (tmp_path / "file").exists()
    one, asked = source()
    one.to(tmp_path / "file", SHA)
    assert asked[0][0] == 20_000
    assert (tmp_path / "file").read_bytes() == DATA


def test_a_rotten_beginning_is_thrown_away(source, tmp_path, events):
    (tmp_path / f".file.{SHA[:12]}.partial").write_bytes(b"rotten")
    source()[0].to(tmp_path / "file", SHA)
    assert (tmp_path / "file").read_bytes() == DATA
    assert [facts["problem"] for facts in events] == ["sha256 differs"]


def test_a_beginning_that_is_too_long_is_thrown_away(source, tmp_path, events):
    (tmp_path / f".file.{SHA[:12]}.partial").write_bytes(DATA + b"more")
    source()[0].to(tmp_path / "file", SHA)
    assert (tmp_path / "file").read_bytes() == DATA


def test_what_is_damaged_is_never_put_in_place(source, tmp_path):
    with pytest.raises(CorruptError, match="damaged"):
        source(lambda start, end: bytes(end - start))[0].to(tmp_path / "file", SHA)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_will_do(source, tmp_path, monkeypatch, number):
    def refuse(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    source()[0].to(tmp_path / "file", SHA)
    assert (tmp_path / "file").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["file"]


def test_any_other_refusal_of_a_lock_is_an_error(source, tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.EIO, "bad")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="bad"):
        source()[0].to(tmp_path / "file", SHA)

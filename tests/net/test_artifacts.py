"""Files in pieces: broken off, twice, out of order, false, too many; over a folder and over a real S3."""

import hashlib
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.net import artifacts
from atoll.net.artifacts import ArtifactError, Artifacts
from atoll.net.database import Database
from atoll.storage.store import open_store
from tests import s3
from tests.clocks import ManualClock

ME, OTHER = "a" * 64, "b" * 64


def sha(data):
    return hashlib.sha256(data).hexdigest()


def make(folder, address=None, **limits):
    database = Database(str(folder / "atoll.db"), patience=5)
    database.create()
    store = open_store(address or str(folder / "store"))
    return Artifacts(store, folder / "scratch", database, clock=ManualClock(), **limits)


@pytest.fixture
def here(tmp_path):
    one = make(tmp_path, hourly=10_000, largest=5_000)
    yield one
    one.database.close()


def send(here, data, size=700, account=ME):
    """As a client does: from where it broke off."""
    done = False
    while not done:
        start = here.received(sha(data), account)
        done = here.receive(sha(data), account, start, len(data), data[start : start + size])
    return sha(data)


@pytest.mark.parametrize("length", [0, 1, 700, 701, 3000])
def test_a_file_comes_in_pieces(here, length):
    data = os.urandom(length)
    assert here.size(sha(data)) is None
    digest = send(here, data)
    assert here.size(digest) == length and here.read(digest) == data
    assert here.receive(digest, OTHER, 0, length, data[:10]), "it is here already, whoever sent it"
    assert b"".join(here.pieces(here.path(digest), 0, length)) == data
    assert b"".join(here.pieces(here.path(digest), 5, min(9, length))) == data[5:9]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(min_size=1, max_size=300),
    cuts=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300))),
)
def test_whatever_pieces_come_in_whatever_order_the_file_is_right_or_not_there(here, data, cuts):
    here.hourly = 1 << 30
    for start, size in cuts:
        piece = data[start : start + size]
        try:
            here.receive(sha(data), ME, start, len(data), piece)
        except ArtifactError as error:
            assert error.code in ("gap", "size")
        there = here.received(sha(data), ME)
        assert there <= len(data)
    if here.size(sha(data)) is not None:
        assert here.read(sha(data)) == data
    assert here.read(send(here, data)) == data


def test_a_gap_and_a_false_length_are_told(here):
    data = os.urandom(100)
    with pytest.raises(ArtifactError, match="0 bytes are here"):
        here.receive(sha(data), ME, 10, 100, data[10:])
    for start, total, piece in ((0, 5_001, data), (-1, 100, data), (0, 99, data)):
        with pytest.raises(ArtifactError) as caught:
            here.receive(sha(data), ME, start, total, piece)
        assert caught.value.status == 413
    send(here, data)
    with pytest.raises(ArtifactError, match="not 101"):
        here.receive(sha(data), ME, 0, 101, data)


def test_what_is_not_what_it_says_is_dropped_and_may_come_again(here):
    data = os.urandom(100)
    with pytest.raises(ArtifactError, match="another digest"):
        here.receive(sha(data), ME, 0, 100, bytes(100))
    assert here.received(sha(data), ME) == 0 and here.size(sha(data)) is None
    assert here.read(send(here, data)) == data


def test_nobody_can_spoil_anothers_pieces(here):
    data = os.urandom(1000)
    here.receive(sha(data), OTHER, 0, 1000, bytes(500))
    assert here.read(send(here, data)) == data


def test_an_account_has_so_many_bytes_an_hour(here):
    for _ in range(3):
        send(here, os.urandom(3000))
    with pytest.raises(ArtifactError) as caught:
        send(here, os.urandom(3000))
    assert caught.value.status == 429
    send(here, os.urandom(3000), account=OTHER)
    here.clock.time += 3600
    send(here, os.urandom(3000))


@pytest.mark.parametrize("name", ["", "../x", "A" * 64, "a" * 63, "a" * 65, "/etc/passwd", "a" * 64 + "\n"])
def test_names_are_digests(here, name):
    for action in (here.size, here.path, here.read, lambda name: here.receive(name, ME, 0, 1, b"x")):
        with pytest.raises(ArtifactError) as caught:
            action(name)
        assert caught.value.status == 404
    with pytest.raises(ArtifactError):
        here.received("a" * 64, name)


def test_a_full_disk_is_a_state_of_the_coordinator(here, monkeypatch):
    monkeypatch.setattr(artifacts, "SPARE", 1 << 60)
    data = os.urandom(100)
    with pytest.raises(ArtifactError) as caught:
        send(here, data)
    assert caught.value.status == 507
    monkeypatch.undo()
    assert here.read(send(here, data)) == data


def test_a_folder_is_laid_out_once(here, tmp_path):
    files = {"a/b.txt": send(here, b"one"), "c": here.write(b"two")}
    here.lay_out(files, tmp_path / "run")
    before = (tmp_path / "run" / "c").stat().st_mtime_ns
    (tmp_path / "run" / "a" / "b.txt").write_bytes(b"spoilt")
    here.lay_out(files, tmp_path / "run")
    assert (tmp_path / "run" / "a" / "b.txt").read_bytes() == b"one"
    assert (tmp_path / "run" / "c").stat().st_mtime_ns == before


def test_what_broke_off_long_ago_is_dropped(here):
    data = os.urandom(100)
    here.receive(sha(data), ME, 0, 100, data[:50])
    now = next(iter((here.scratch / "coming").iterdir())).stat().st_mtime
    assert here.sweep(now) == 0
    assert here.sweep(now + 8 * 86400) == 1
    assert here.received(sha(data), ME) == 0


@pytest.mark.slow
def test_over_a_real_s3(tmp_path, monkeypatch):
    with s3.server(tmp_path / "s3") as port:
        for name, value in s3.environment(port).items():
            monkeypatch.setenv(name, value)
        here = make(tmp_path, f"s3://{s3.BUCKET}/run")
        data = os.urandom(3000)
        digest = send(here, data)
        assert here.store.names("sha256") == [f"sha256/{digest}"]
        assert here.read(digest) == data
        here.lay_out({"x/y": digest}, tmp_path / "run")
        assert (tmp_path / "run" / "x" / "y").read_bytes() == data
        here.database.close()

"""What is special about a store that is a folder; what all stores promise is in tests/contracts."""

import errno
import os
import shutil

import pytest

from atoll.errors import CorruptError, Interrupted, StorageError
from atoll.storage.folder import FolderStore
from tests.clocks import ManualClock


@pytest.fixture
def place(tmp_path, events):
    return FolderStore(
        str(tmp_path / "mounted"), 1, lambda kind, **facts: events.append(facts["problem"]), ManualClock()
    )


def test_a_mount_that_is_missing_is_not_made(tmp_path):
    with pytest.raises(StorageError, match="there is no such folder; mount it"):
        FolderStore(str(tmp_path / "not-mounted" / "run"))
    assert not (tmp_path / "not-mounted").exists()


def test_a_mount_that_goes_away_is_waited_for_and_not_made(place, tmp_path, events):
    place.write("a", b"1")
    shutil.rmtree(tmp_path / "mounted")
    with pytest.raises(Interrupted, match="not there any more"):
        place.write("b", b"2")
    assert len(events) > 1
    assert not (tmp_path / "mounted").exists()


def test_a_folder_that_may_only_be_read(events):
    """The kernel's own folders: nobody makes files there, whoever he is."""
    with pytest.raises(StorageError, match="writing is not allowed"):
        FolderStore("/sys/atoll")
    reader = FolderStore("/sys/kernel", event=lambda kind, **facts: events.append(kind))
    with pytest.raises(StorageError, match="writing is not allowed"):
        reader.write("atoll", b"1")
    assert events == [], "it is no fault that would pass"


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b", ".hidden", "a\\b"])
def test_no_name_leads_out_of_the_folder(place, tmp_path, name):
    (tmp_path / "out").write_text("secret")
    for action in (
        place.read,
        place.exists,
        lambda one: place.write(one, b""),
        lambda one: place.delete([one]),
    ):
        with pytest.raises(CorruptError):
            action(name)
    assert (tmp_path / "out").read_text() == "secret"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_will_do(place, monkeypatch, number):
    def refuse(source, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    assert place.create("done.json", b"mine")
    assert not place.create("done.json", b"yours")
    assert place.read("done.json") == b"mine"


def test_a_fault_that_passes(place, monkeypatch, events):
    place.write("a", b"1")
    due = [OSError(errno.ESTALE, "stale")]
    opened = type(place._top).open
    monkeypatch.setattr(
        type(place._top), "open", lambda path, mode: _raised(due.pop()) if due else opened(path, mode)
    )
    assert place.read("a") == b"1"
    assert events == [os.strerror(errno.ESTALE)]


def _raised(error):
    raise error


def test_half_a_record_is_looked_at_again(place, tmp_path, events):
    (tmp_path / "mounted" / "done.json").write_bytes(b'{"files": ')
    with pytest.raises(Interrupted, match="bytes came"):
        place.read_json("done.json")


def test_what_a_killed_machine_left_on_its_way_is_not_listed(place, tmp_path):
    place.write("a/b", b"1")
    (tmp_path / "mounted" / "a" / ".b.123.partial").write_bytes(b"half")
    assert place.names() == ["a/b"]

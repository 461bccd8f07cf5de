"""One process at a time, and a file system without locks is no other process."""

import errno
import fcntl
import getpass
import json
import logging
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import RunError
from atoll.runs.locks import alone, is_abandoned


def test_a_second_process_is_told_who_is_there(tmp_path: Path) -> None:
    trained = alone(tmp_path / "data", "trained")
    with (
        alone(tmp_path / "data"),
        pytest.raises(RunError, match="being trained by another") as caught,
        trained,
    ):
        pass
    who = f"({os.getpid()} of {getpass.getuser()} on {socket.gethostname()}, since 2"
    assert who in str(caught.value)
    with alone(tmp_path / "data"):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL])
def test_a_file_system_without_locks_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def flock(file: Any, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING), alone(tmp_path / "data"):
        with pytest.raises(RunError, match=rf"\({os.getpid()} of .*; wait for it, or remove"):  # noqa: SIM117
            with alone(tmp_path / "data", "trained"):
                pass
        with alone(tmp_path / "other"):
            pass
    assert caplog.text.count("has no file locks") == 1, "said once"
    with alone(tmp_path / "data"):
        pass


def test_what_a_killed_process_has_left_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: Any, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    ended = subprocess.Popen(["true"])
    ended.wait()
    owner = tmp_path / ".data.owner"
    owner.write_text(json.dumps({"pid": ended.pid, "host": socket.gethostname(), "since": 0}))
    with alone(tmp_path / "data"):
        assert json.loads(owner.read_text())["pid"] == os.getpid()
    owner.write_text(json.dumps({"pid": ended.pid, "host": "elsewhere", "since": 0}))
    with pytest.raises(RunError, match="of somebody on elsewhere"), alone(tmp_path / "data"):
        pass


def test_who_has_no_name_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers that are started with a user of their own."""

    def getuser() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", getuser)
    with alone(tmp_path / "data"):
        assert json.loads((tmp_path / ".data.lock").read_text())["user"] == f"user {os.getuid()}"


def test_a_folder_is_abandoned_once_its_last_process_is_gone(tmp_path: Path) -> None:
    assert not is_abandoned(tmp_path / "data"), "nobody was ever there"
    with alone(tmp_path / "data"):
        assert not is_abandoned(tmp_path / "data")
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock = tmp_path / ".data.lock"
    lock.write_text(json.dumps({"pid": ended.pid, "host": socket.gethostname(), "since": 1}))
    assert is_abandoned(tmp_path / "data")
    lock.write_text(json.dumps({"pid": ended.pid, "host": "another machine", "since": 1}))
    assert not is_abandoned(tmp_path / "data"), "of another machine nobody here knows"

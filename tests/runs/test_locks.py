"""One process at a time, and a file system without locks is no other process."""

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import RunError
from atoll.runs.locks import alone


def test_a_second_process_is_told_who_is_there(tmp_path: Path) -> None:
    trained = alone(tmp_path / "data", "trained")
    with (
        alone(tmp_path / "data"),
        pytest.raises(RunError, match="being trained by another") as caught,
        trained,
    ):
        pass
    assert f"({os.getpid()} on {socket.gethostname()}, since 2" in str(caught.value)
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
        pass
    assert "has no file locks" in caplog.text

"""What passes is tried again, and what does not is no damage."""

import errno
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.data import reading
from atoll.data.reading import Stream, patiently, read_bytes, resumed
from atoll.errors import DataError


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it would have waited."""
    waited: list[float] = []
    monkeypatch.setattr("atoll.data.reading.time.sleep", waited.append)
    return waited


def failing(times: int, number: int) -> Any:
    """An action that fails so often before it succeeds."""
    calls: list[int] = []

    def action() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise OSError(number, "no luck")
        return len(calls)

    return action


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_what_passes_is_tried_again(number: int, waits: list[float]) -> None:
    assert patiently(failing(2, number), "x") == 3
    assert waits == list(reading.WAITS[:2])


def test_what_does_not_pass_is_told_as_what_it_is(waits: list[float]) -> None:
    with pytest.raises(DataError, match=r"x cannot be read now \(no luck, 4 tries\).*same command again"):
        patiently(failing(9, errno.EIO), "x")
    assert waits == list(reading.WAITS)


def test_other_errors_are_not_tried_again(waits: list[float]) -> None:
    with pytest.raises(PermissionError):
        patiently(failing(1, errno.EACCES), "x")
    assert not waits


def test_items_go_on_where_they_broke_off(waits: list[float]) -> None:
    starts: list[int] = []

    def read(start: int) -> Iterator[int]:
        starts.append(start)
        for number in range(start, 10):
            if number in (3, 7) and starts.count(number) == 0:
                raise OSError(errno.EIO, "no luck")
            yield number

    assert list(resumed(read, 1, "x")) == list(range(1, 10))
    assert starts == [1, 3, 7]
    assert waits == [reading.WAITS[0]] * 2

    def broken(start: int) -> Iterator[int]:
        yield start
        raise OSError(errno.EIO, "no luck")

    with pytest.raises(DataError, match="4 tries"):
        list(resumed(lambda start: broken(start) if start == 0 else fail(), 0, "x"))


def fail() -> Iterator[int]:
    raise OSError(errno.EIO, "no luck")


@pytest.mark.parametrize("packed", [False, True])
def test_a_stream_goes_on_where_it_was(tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytes(range(256)) * 8
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with Stream(path) as stream:
        assert stream.packed == packed
        assert stream.length == (None if packed else len(raw))
        assert stream.read(10) == raw[:10]
        stale = stream._file

        class Stale:
            def read(self, count: int) -> bytes:
                raise OSError(errno.ESTALE, "Stale file handle")

            def close(self) -> None:
                stale.close()

        stream._file = Stale()
        assert stream.read(10) == raw[10:20]
        stream.go_to(2000)
        assert stream.read(100) == raw[2000:]
    assert read_bytes(path)[:2] == (b"\x1f\x8b" if packed else raw[:2])

import errno
import io
from pathlib import Path

import numpy as np
import pytest

from atoll.errors import is_full, reason, refusal


def test_advice_to_load_unsafely_reaches_nobody():
    """Whatever numpy says of an array of objects, or of a file that is none of its own."""
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    for data in (file.getvalue(), b"\x80\x04no such thing"):
        with pytest.raises(ValueError, match="allow_") as caught:
            np.load(io.BytesIO(data), allow_pickle=False)
        assert "allow_" in str(caught.value)
        assert reason(caught.value) == "it holds Python objects, which are not read: they could run code"


def test_one_line_and_never_nothing():
    assert reason(ValueError("first\nsecond")) == "first"
    assert reason(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "it is read-only for you"),
        (PermissionError(errno.EACCES, "Permission denied"), "it is read-only for you"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space left"),
        (OSError("486000 requested and 257984 written"), "no space left"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    ],
)
def test_why_a_place_cannot_be_written_to(error, words):
    assert refusal(error) == words


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_numpy_on_a_full_disk_is_told_by_its_words():
    with (
        pytest.raises(OSError, match="requested and") as caught,
        Path("/dev/full").open("wb", buffering=0) as file,
    ):
        np.arange(100_000).tofile(file)
    assert is_full(caught.value)

"""Whether streams of Arrow's on this disk are whole: readers take those that end early for shorter ones."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from atoll.errors import DataError

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Last bytes of a stream of Arrow's; readers do not miss them, and stop at the first that they meet."""


def check_ends(files: Iterable[str]) -> None:
    """Refuse streams of Arrow's on this disk that readers would take for shorter ones."""
    for name in files:
        path = Path(name)
        if path.suffix == ".arrow" and path.is_file() and not _is_whole(path):
            raise DataError(f"{path} ends early: batches of rows are missing or damaged; get it again")


def _is_whole(path: Path) -> bool:
    """Whether a stream ends where its file does, which its messages tell without their bodies."""
    with pa.memory_map(str(path)) as file:
        if file.read(6) == b"ARROW1":
            return True  # with a table of its batches at the end, without which it cannot be opened
        file.seek(0)
        for _ in pa.ipc.MessageReader.open_stream(file):
            pass
        consumed, size = file.tell(), file.size()
        file.seek(max(0, size - len(END_OF_STREAM)))
        return bool(consumed == size and file.read() == END_OF_STREAM)

"""One process at a time on a folder; the lock goes with the process, however it ends."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from atoll.errors import RunError

HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
"""What flock says where another process has the lock; anything else means that there are no locks here."""


@contextlib.contextmanager
def alone(folder: Path, verb: str = "written") -> Iterator[None]:
    """Keep a second process from working on a folder, and tell it who is there, where and since when."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                raise RunError(
                    f"{folder} is being {verb} by another process{_owner(file.name)}; wait for it or stop it"
                ) from None
            # Lustre without -o flock, some NFS: nobody can be kept out, and nobody is there for sure.
            logging.getLogger(__name__).warning(
                f"{folder.parent} has no file locks ({error.strerror}); see that no other process works there"
            )
        with contextlib.suppress(OSError):
            file.truncate(0)
            now = {"pid": os.getpid(), "host": socket.gethostname(), "since": int(time.time())}
            file.write(json.dumps(now))
            file.flush()
        yield


def _owner(name: str) -> str:
    """Who has the lock, as the file says."""
    try:
        said = json.loads(Path(name).read_text(encoding="utf-8"))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(said["since"]))
        return f" ({said['pid']} on {said['host']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""

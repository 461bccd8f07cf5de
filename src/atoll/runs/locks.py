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
from typing import IO, Any

from atoll.errors import RunError

logger = logging.getLogger(__name__)

HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
"""What flock says where another process has the lock; anything else means that there are no locks here."""
_told: set[Path] = set()


@contextlib.contextmanager
def alone(folder: Path, verb: str = "written") -> Iterator[None]:
    """Keep a second process from working on a folder, and tell it who is there, where and since when.

    Where the file system has no locks, a file that only one process can create stands for one.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f".{folder.name}.lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                raise _taken(folder, verb, path, "wait for it or stop it") from None
            _tell_once(folder.parent, error)
        else:
            _sign(file)
            yield
            return
    with _created(folder, verb):
        yield


def _tell_once(folder: Path, error: OSError) -> None:
    if folder not in _told:
        _told.add(folder)
        logger.warning("%s has no file locks (%s); files stand for them", folder, error.strerror)


@contextlib.contextmanager
def _created(folder: Path, verb: str) -> Iterator[None]:
    """A file that is there as long as its process works; one of a process of ours that is gone is removed."""
    path = folder.parent / f".{folder.name}.owner"
    if _is_gone(path):
        path.unlink(missing_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            _sign(file)
    except FileExistsError:
        raise _taken(folder, verb, path, f"wait for it, or remove {path} if it is gone") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _sign(file: IO[str]) -> None:
    """Say who has it, for whoever wants it too."""
    with contextlib.suppress(OSError):
        file.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": int(time.time())}, file)
        file.flush()


def _owner(path: Path) -> dict[str, Any]:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return {"pid": int(owner["pid"]), "host": str(owner["host"]), "since": float(owner["since"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_gone(path: Path) -> bool:
    """Whether its owner was a process of this machine, and is there no more."""
    owner = _owner(path)
    if not owner or owner["host"] != socket.gethostname():
        return False
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _taken(folder: Path, verb: str, path: Path, advice: str) -> RunError:
    owner, who = _owner(path), ""
    if owner:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since"]))
        who = f" ({owner['pid']} on {owner['host']}, since {since})"
    return RunError(f"{folder} is being {verb} by another process{who}; {advice}")

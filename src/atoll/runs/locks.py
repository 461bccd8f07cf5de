"""One process at a time on a folder; the lock goes with the process, however it ends."""

import contextlib
import errno
import fcntl
import getpass
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
"""What flock says where another process has the lock."""
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
"""What file systems say that know no locks, as some that clusters share."""
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
            held = locked(file, path, wait=False)
        except OSError as error:
            if error.errno not in HELD:
                raise
            raise _taken(folder, verb, path, "wait for it or stop it") from None
        if held:
            _sign(file)
            yield
            return
    with _created(folder, verb):
        yield


def locked(file: IO[Any], path: Path, *, wait: bool = True) -> bool:
    """Take the lock of a file; False where the file system has none, an error if somebody else has it.

    Whoever waits gets it once the other has closed the file, or has ended.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        _tell_once(path.parent, error)
        return False
    return True


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
        own = {"pid": os.getpid(), "user": _user(), "host": socket.gethostname(), "since": int(time.time())}
        json.dump(own, file)
        file.flush()


def _user() -> str:
    """The person whose process this is; a number in containers that know no names."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


def _owner(path: Path) -> dict[str, Any]:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        who = {"pid": int(owner["pid"]), "user": str(owner.get("user", "somebody"))}
        return {**who, "host": str(owner["host"]), "since": float(owner["since"])}
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


def is_abandoned(folder: Path) -> bool:
    """Whether the last process that worked on a folder was one of this machine, and is there no more."""
    return any(_is_gone(folder.parent / f".{folder.name}.{kind}") for kind in ("lock", "owner"))


def _taken(folder: Path, verb: str, path: Path, advice: str) -> RunError:
    owner, who = _owner(path), ""
    if owner:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since"]))
        who = f" ({owner['pid']} of {owner['user']} on {owner['host']}, since {since})"
    return RunError(f"{folder} is being {verb} by another process{who}; {advice}")

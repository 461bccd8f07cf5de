"""How a process of ours ends: mistakes in one line and exit code 1, a saved stop with exit code 75."""

import atexit
import errno
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from atoll import errors, threads


def exit_code(action: Callable[[], object], *, debug: bool = False) -> int:
    """Do something as the whole of a process, and say how that ends."""
    threads.settle()
    # Only our own news: libraries announce at this level how they were loaded.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("atoll").setLevel(logging.INFO)
    try:
        action()
    except errors.AtollError as error:
        if str(error):  # else a process of ours has said it
            _complain(str(error), debug)
        return errors.EXIT_USER_ERROR
    except errors.Interrupted as stop:
        sys.stderr.write(f"atoll: {stop}\n")
        return errors.EXIT_RUN_AGAIN
    except OSError as error:
        _complain(of_the_disk(error), debug)
        return errors.EXIT_USER_ERROR
    return 0


def leave(code: object) -> None:
    """End as an interpreter does, but for taking itself apart.

    In a fork each page of its parent would be copied for that; and a thread of torch's that still holds a
    tensor of Python's is killed by it, which ends a rank that has done all of its work with SIGABRT.
    Returns where leaving would lose something: words instead of a number, or threads that are waited for.
    """
    others = [one for one in threading.enumerate() if one is not threading.current_thread()]
    if isinstance(code, int | None) and all(one.daemon for one in others):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit((code or 0) & 0xFF)


def of_the_disk(error: OSError) -> str:
    """What the system refused, in words: a folder that cannot be written to is named as such."""
    if errors.is_full(error):
        return f"{error.filename or 'the disk'}: no space left; free some and run the same command again"
    if error.filename is None or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or 'the disk'}: {error.strerror or error}"
    path = Path(os.fsdecode(error.filename))
    if path.is_file() and not os.access(path, os.R_OK):
        return f"{path} may not be read by you; ask whoever it belongs to for access"
    folder = next(place for place in (path, *path.parents) if place.is_dir())
    if error.errno != errno.EROFS and os.access(folder, os.W_OK):
        return f"{path}: {error.strerror}; it belongs to somebody else, or is protected"
    return f"{folder} is read-only for you; write elsewhere ($ATOLL_RUNS is where runs are) or ask for access"


def _complain(message: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"atoll: {' '.join(message.split())}\n")

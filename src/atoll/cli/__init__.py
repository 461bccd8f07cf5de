"""Parse, call, print: one module per group of commands; heavy imports inside the command."""

import errno
import logging
import os
import sys
import traceback
from pathlib import Path

from atoll import errors, threads
from atoll.cli import about, credit, results, stages  # noqa: F401 - they add their commands to the app
from atoll.cli.options import app


def main() -> None:
    """Run the command line: mistakes in one line and exit code 1, a saved stop with exit code 75."""
    threads.settle()
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    # Only our own news: libraries announce at this level how they were loaded.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("atoll").setLevel(logging.INFO)
    try:
        app(args=arguments, prog_name="atoll", standalone_mode=True)
    except errors.AtollError as error:
        if str(error):  # else a process of ours has said it
            _complain(str(error), debug)
        sys.exit(errors.EXIT_USER_ERROR)
    except errors.Interrupted as stop:
        print(f"atoll: {stop}", file=sys.stderr)
        sys.exit(errors.EXIT_RUN_AGAIN)
    except OSError as error:
        _complain(of_the_disk(error), debug)
        sys.exit(errors.EXIT_USER_ERROR)


def of_the_disk(error: OSError) -> str:
    """What the system refused, in words: a folder that cannot be written to is named as such."""
    if error.filename is None or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or 'the disk'}: {error.strerror or error}"
    path = Path(os.fsdecode(error.filename))
    folder = next(place for place in (path, *path.parents) if place.is_dir())
    if error.errno != errno.EROFS and os.access(folder, os.W_OK):
        return f"{path}: {error.strerror}; it belongs to somebody else, or is protected"
    return f"{folder} is read-only for you; write elsewhere ($ATOLL_RUNS is where runs are) or ask for access"


def _complain(message: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(f"atoll: {' '.join(message.split())}", file=sys.stderr)

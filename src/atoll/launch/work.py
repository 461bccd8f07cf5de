"""One stage of one run, made on this machine: here, by several ranks, or between a store and a folder."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from atoll import errors, threads
from atoll.launch import leased, ranks
from atoll.launch.job import JobSpec, read_settings
from atoll.runs import Run, graph
from atoll.runs.graph import Node, Progress


def work(node: Node, progress: Progress | None = None) -> None:
    """Make a stage that is not finished yet."""
    run = node.run
    if run.config.launch.store and not node.kind.again:
        leased.work(node)
    elif (size := ranks.wanted(node)) > 1:
        ranks.check(ranks.run(JobSpec.of(node.name, run.config, run.path), size))
    else:
        node.make(progress)


def main() -> None:
    """Be a worker: `python -m atoll.launch.work RESOLVED FOLDER STAGE`."""
    resolved, folder, stage = sys.argv[1:]
    run = Run(Path(folder), read_settings(Path(resolved)))
    work(graph.node(run, stage))


def exit_code(action: Callable[[], None]) -> int:
    """Run a worker: mistakes in one line and exit code 1, a saved stop with exit code 75."""
    threads.settle()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("atoll").setLevel(logging.INFO)
    try:
        action()
    except errors.AtollError as error:
        if str(error):  # else a process of ours has said it
            sys.stderr.write(f"atoll: {' '.join(str(error).split())}\n")
        return errors.EXIT_USER_ERROR
    except errors.Interrupted as stop:
        sys.stderr.write(f"atoll: {stop}\n")
        return errors.EXIT_RUN_AGAIN
    except OSError as error:
        sys.stderr.write(f"atoll: {error.filename or 'the disk'}: {error.strerror or error}\n")
        return errors.EXIT_USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

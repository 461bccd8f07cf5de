"""One stage of one run, made on this machine: here, by several ranks, or between a store and a folder."""

import sys
from pathlib import Path

from atoll import exits
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


if __name__ == "__main__":
    sys.exit(exits.exit_code(main))

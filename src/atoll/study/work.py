"""One training of a study and the judgement of its cells, in a process of its own."""

import sys
from pathlib import Path

from atoll import exits
from atoll.study import cells
from atoll.study.design import Study


def main() -> None:
    """Be a worker: `python -m atoll.study.work RESOLVED FOLDER TRAINING`."""
    resolved, _, training = sys.argv[1:]
    shop = cells.Workshop(Study.read(Path(resolved)))
    cells.work(shop, shop.cells(), training)


if __name__ == "__main__":
    sys.exit(exits.exit_code(main))

"""Numbers of a submitted update, in a process of its own, since the coordinator opens no tensors.

`python -m atoll.net.verification.measured BEFORE AFTER [SUM_OF_LEARNING_RATES]` prints them as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.models.checkpoint import read_tensors
from atoll.net.verification import updates


def facts(before: Path, after: Path, rates: float = 1.0) -> dict[str, Any]:
    """Whether all is finite, the share of weights that moved, the norm per learning rate, and a sketch."""
    old, new = read_tensors(before), read_tensors(after)
    if not updates.is_finite(new):
        return {"finite": False, "changed": 0.0, "norm": 0.0, "sketch": []}
    return {
        "finite": True,
        "changed": updates.changed(old, new),
        "norm": updates.norm(old, new) / rates,
        "sketch": updates.sketch(old, new),
    }


def main(arguments: list[str]) -> int:
    """Measure and print."""
    try:
        before, after, *rest = arguments
        answer = facts(Path(before), Path(after), *map(float, rest))
    except (AtollError, ValueError, TypeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

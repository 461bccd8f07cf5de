"""What a job measures while it works, as lines that others read along."""

import json
import math
import time
from pathlib import Path

from atoll.runs.files import read_lines, replacing


class Metrics:
    """A job's `metrics.jsonl`: one object per line, opened once, readable while it grows."""

    def __init__(self, path: Path, done: int) -> None:
        """Open the file after `done` steps, dropping lines of later ones: they will be taken again."""
        if path.is_file():
            kept = [line for line in read_lines(path) if line["step"] <= done]
            with replacing(path) as beside:
                beside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, step: int, **values: float) -> None:
        """Append one line; a value that is not finite is a bug of the caller."""
        assert all(math.isfinite(value) for value in values.values()), values
        self._file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

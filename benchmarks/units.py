"""What follows a result: all units that can be worked on next, found anew whenever one is taken.

With eight times as many experts it may take eight times as long and not more: a coordinator that looked at
every file for every stage took 45 times as long for 64 experts as for 8, and twelve seconds for 256.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from atoll import config
from atoll.net import units
from atoll.net.protocol import File
from atoll.net.shelves import folder_of
from atoll.runs import Run, graph
from benchmarks._shown import show

EXPERTS = (32, 256)
SMALL = (2, 4)
DATA = ("done.json", "part-00000.parquet", "part-00001.parquet", "gallery.png")
BEGUN = ("state/step-00000100.safetensors", "metrics.jsonl", "config.json")
FINISHED = ("done.json", "weights.safetensors")


def half_done(experts: int) -> tuple[Run, dict[str, File]]:
    """A run of which every second expert is there, and all others have begun."""
    settings = [f"partition.clusters={experts}", "partition.fine=1024"]
    run = Run(Path("nowhere"), config.load(Path("recipes/fashion.toml"), settings))
    names: list[str] = []
    for node in graph.nodes(run):
        if node.kind.name in ("data", "partition", "cluster", "start"):
            names += [f"{folder_of(node)}/{name}" for name in DATA]
        elif node.kind.name == "expert":
            files = (*BEGUN, *(FINISHED if node.index % 2 else ()))
            names += [f"{folder_of(node)}/{name}" for name in files]
    return run, {name: File(path=name, sha256="0" * 64, size=100) for name in names}


def seconds(experts: int, repeats: int = 5) -> tuple[float, int, int]:
    """Of a processor for one answer, the best of several; how many files and units there are."""
    run, table = half_done(experts)
    sizes, best, found = units.Sizes(run="a" * 64, segment=200, every=10), float("inf"), 0
    for _ in range(repeats):
        since = time.process_time()
        found = len(units.ready(run, table, lambda file: b"", sizes))
        units.finished(run, table)
        best = min(best, time.process_time() - since)
    return best, len(table), found


def measure(experts: tuple[int, int]) -> dict[str, Any]:
    """Few and many."""
    few, many = (seconds(number) for number in experts)
    linear = few[0] * experts[1] / experts[0]
    rows = [
        {"experts": number, "ms of a processor": round(1e3 * took, 1), "files": files, "units": found}
        for number, (took, files, found) in zip(experts, (few, many), strict=True)
    ]
    what = f"as many times longer for {experts[1]} experts as there are more than {experts[0]}"
    return {"benchmark": "units", "ratios": {what: linear / many[0]}, "detail": {"runs": rows}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    show(measure(SMALL if options.small else EXPERTS), options.json)


if __name__ == "__main__":
    main()

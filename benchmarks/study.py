"""What a study costs besides its trainings: 20 cells against the sum of the distinct trainings behind them.

Two seeds of a monolith, of four and of eight experts of the demo's size, each sampled by two strategies with
two numbers of steps. Everything is made in a folder of its own: data, partitions and the classifier too.
Each training's own time is measured where it happens, without the start of its process; on a busy machine
the processor's time says more than the clock's.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._shown import show

RECIPE = Path(__file__).parents[1] / "recipes" / "fashion.toml"
ALLOWED = 1.15
"""Times the trainings that a study may take."""
STUDY = """
name = "twenty"
recipe = "{recipe}"
[set]
expert.batch = 32
expert.batch_of = "monolith"
sample.solver = "dpm++"
sample.batch = 250
evaluate.num = {num}
launch.at_once = {at_once}
launch.threads = 1
[budget]
samples = [{budget}]
[axes]
partition.clusters = [4, 8]
sample.strategy = ["ancestral", "top-1"]
sample.steps = [5, 10]
seed = [0, 1]
"""


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        found = {"benchmark": "study", **measure(Path(folder), options)}
    show(found, options.json)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=50_000, help="training samples of every cell")
    parser.add_argument("--num", type=int, default=250, help="samples that are judged in each cell")
    parser.add_argument("--at-once", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    path = folder / "twenty.toml"
    path.write_text(
        STUDY.format(recipe=RECIPE, num=options.num, at_once=options.at_once, budget=options.budget)
    )
    environment = {**os.environ, "ATOLL_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "atoll", "study", str(path), "--json"]
    since, before = time.monotonic(), processor()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    clock, cpu = time.monotonic() - since, processor() - before
    if done.returncode:
        sys.exit(done.stderr)
    rows = json.loads((folder / "runs" / "studies" / "twenty" / "study.json").read_text())["rows"]
    trained = {row["training"]: row["seconds"] for row in rows}
    train = sum(each["train"] for each in trained.values())
    train_cpu = sum(each["train_cpu"] for each in trained.values())
    return {
        "ratios": {
            f"{ALLOWED} times the distinct trainings of {len(rows)} cells, CPU time": ALLOWED
            * train_cpu
            / cpu,
            f"{ALLOWED} times the distinct trainings of {len(rows)} cells, on the clock": ALLOWED
            * train
            / clock,
        },
        "detail": {
            "cells": len(rows),
            "distinct trainings": len(trained),
            "budget": options.budget,
            "samples judged in a cell": options.num,
            "trainings at once": options.at_once,
            "CPU seconds in all": cpu,
            "CPU seconds of trainings": train_cpu,
            "times the trainings, CPU": cpu / train_cpu,
            "seconds in all": clock,
            "seconds of trainings": train,
            "times the trainings": clock / train,
            "seconds of sampling": sum(row["seconds"]["sample"] for row in rows),
            "seconds of judging": sum(row["seconds"]["judge"] for row in rows),
        },
    }


def processor() -> float:
    """CPU seconds of all processes that this one has started and seen end, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()

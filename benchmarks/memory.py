"""Peak memory of prepare, partition and evaluate's draw, as data grow: by how much more samples cost more."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._memory import peak_memory

FILE_ROWS = 100_000
"""Rows of one file of the source."""
STAGES = ("prepare", "partition", "partition by file", "evaluate")
DRAWN = 5_000
"""Real samples that the judge takes."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", type=int, default=1_000_000, help="samples of the smaller set")
    parser.add_argument("--large", type=int, default=5_000_000, help="samples of the larger one")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        work(options.stage, options.folder)
        print(peak_memory())
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    detail: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as place:
        for count in (options.small, options.large):
            folder = Path(place) / str(count)
            write_source(folder / "source", count)
            detail[str(count)] = {stage: measured(stage, folder) for stage in STAGES}
    small, large = detail.values()
    ratios = {
        f"{stage}: memory of {options.small:,} samples, in that of {options.large:,} (aim: 0.83)": small[
            stage
        ]
        / large[stage]
        for stage in STAGES
    }
    found = {"benchmark": "memory", "ratios": ratios, "detail": {"bytes": detail}}
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))


def write_source(folder: Path, count: int) -> None:
    """Pictures of 4 x 4 with labels, in Parquet files, and an assignment of all by id-less names."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    with (folder.parent / "clusters.csv").open("w", encoding="utf-8") as table:
        table.write("name,cluster\n")
        for number, start in enumerate(range(0, count, FILE_ROWS)):
            rows = min(FILE_ROWS, count - start)
            flat = pa.array(random.integers(0, 256, rows * 16, dtype=np.uint8))
            for _ in range(2):
                flat = pa.FixedSizeListArray.from_arrays(flat, 4)
            labels = pa.array(np.arange(rows) % 10)
            name = f"data-{number:05d}.parquet"
            pq.write_table(pa.table({"image": flat, "label": labels}), folder / name, row_group_size=5_000)
            table.writelines(f"{name}[{row}],{row % 4}\n" for row in range(rows))


def measured(stage: str, folder: Path) -> int:
    """Peak memory of one stage in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--stage", stage, "--folder", str(folder)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(said.stdout.split()[-1])


def work(stage: str, folder: Path) -> None:
    from atoll.config import DataConfig, PartitionConfig, RunConfig
    from atoll.data import encode, partition
    from atoll.evaluate import reference
    from atoll.runs import Run

    by_file = PartitionConfig(clusters=4, method="file", file=str(folder / "clusters.csv"))
    config = RunConfig(
        name="memory",
        data=DataConfig(source=str(folder / "source")),
        partition=by_file if stage == "partition by file" else PartitionConfig(clusters=4),
    )
    run = Run(folder / "run", config)
    if stage == "prepare":
        encode.prepare(run)
    elif stage == "evaluate":
        reference.draw(run, DRAWN)
    else:
        shutil.rmtree(run.partition.path, ignore_errors=True)
        partition.partition(run)


if __name__ == "__main__":
    main()

"""Peak memory of prepare, partition and evaluate, as data grow: by how much more samples cost more."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._memory import peak_memory
from benchmarks._shown import show

if TYPE_CHECKING:
    from atoll.runs import Run

FILE_ROWS = 100_000
"""Rows of one file of the source."""
STAGES = ("prepare", "partition by file", "partition", "train", "evaluate", "folder")
"""Each in a process of its own, in this order."""
FILES = 10
"""There is one picture in the folder for so many samples."""


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
            write_pictures(folder / "pictures", count // FILES)
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
    show(found, options.json)


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


def write_pictures(folder: Path, count: int) -> None:
    """Files with the names of pictures, all in one folder, which is the worst case."""
    folder.mkdir()
    for number in range(count):
        (folder / f"picture-{number:09d}.png").touch()


def measured(stage: str, folder: Path) -> int:
    """Peak memory of one stage in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--stage", stage, "--folder", str(folder)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    peak = int(said.stdout.split()[-1])
    print(f"{folder.name} samples, {stage}: {peak:,} bytes", file=sys.stderr, flush=True)
    return peak


def work(stage: str, folder: Path) -> None:
    from atoll.config import DataConfig
    from atoll.data import encode, partition, sources
    from atoll.evaluate import evaluation
    from atoll.train import jobs

    if stage == "folder":
        source = sources.open_source(DataConfig(source=str(folder / "pictures")))
        assert len({source.piece_identity(piece) for piece in range(source.pieces)}) == source.pieces
        assert source.identity
        return
    run = the_run(folder, by_file=stage == "partition by file")
    if stage == "prepare":
        encode.prepare(run)
    elif stage == "train":
        for index in range(run.config.partition.clusters):
            jobs.expert(run, index)
        jobs.router(run)
    elif stage == "evaluate":
        evaluation.evaluate(run)
    else:
        shutil.rmtree(run.partition.path, ignore_errors=True)
        partition.partition(run)


def the_run(folder: Path, *, by_file: bool) -> "Run":
    """Networks too small to count, so that what is seen is the data."""
    from atoll.config import validate
    from atoll.runs import Run

    network = {"width": 32, "depth": 1, "heads": 2, "steps": 2, "batch": 64, "precision": "float32"}
    by_name = {"method": "file", "file": str(folder / "clusters.csv")}
    recipe = {
        "name": "memory",
        "data": {"source": str(folder / "source")},
        "partition": {"clusters": 4, **(by_name if by_file else {})},
        "condition": {"kind": "class"},
        "expert": network,
        "router": network,
        "sample": {"steps": 2},
        "evaluate": {"num": 256},
    }
    return Run(folder / "run", validate(recipe, "this program"))


if __name__ == "__main__":
    main()

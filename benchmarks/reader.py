"""Reader: shuffled latents per second against what training consumes, and how long training waits."""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from atoll import config
from atoll.config import RunConfig
from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.data.store import MEMORY, Batch, Reader, group_rows, write_cluster_file
from atoll.runs import Run
from atoll.runs.records import ClusterContents
from atoll.train import jobs
from benchmarks._shown import show

SHAPE = (4, 32, 32)
ROWS, FILE = 49_152, 8192
"""400 MB of latents: more than the reader holds in memory, so that it goes by windows of row groups."""
BATCH = 256
STEPS = 400
"""Of training: enough that the first batch, for which everything is read, does not count."""
RECIPE = Path(__file__).parents[1] / "recipes" / "fashion.toml"


class TimedReader(Reader):
    """A reader that knows how long its consumer waited, and how long the consumer took in all."""

    waited = 0.0
    batches_given = 0
    first = last = 0.0

    def batches(self, start_step: int = 0) -> Generator[Batch, None, None]:
        """The same batches, timed from the second on: for the first, everything is opened."""
        with contextlib.closing(super().batches(start_step)) as inner:
            while True:
                asked = time.perf_counter()
                batch = next(inner)
                TimedReader.last = time.perf_counter()
                if TimedReader.batches_given:
                    TimedReader.waited += TimedReader.last - asked
                else:
                    TimedReader.first = TimedReader.last
                TimedReader.batches_given += 1
                yield batch


def write_latents(run: Run) -> None:
    """One cluster of random latents at rest."""
    stage = run.cluster(0)
    stage.path.mkdir(parents=True)
    random = np.random.default_rng(0)
    width = int(np.prod(SHAPE)) * 2
    group = group_rows(width)
    parts: list[tuple[str, int]] = []
    for number in range(ROWS // FILE):
        latents = random.normal(size=(FILE, *SHAPE)).astype(np.float16)
        table = pa.table(
            {
                "id": pa.array([random.bytes(32) for _ in range(FILE)], pa.binary(32)),
                "sample": pa.array([latent.tobytes() for latent in latents], pa.binary(width)),
                "label": pa.array([None] * FILE, pa.int64()),
                "caption": pa.array([None] * FILE, pa.string()),
            }
        )
        write_cluster_file(stage.path / f"part-{number:05d}.parquet", table, group)
        parts.append((f"part-{number:05d}.parquet", FILE))
    contents = ClusterContents(
        **{"cluster": 0, "clusters": 1, "rows": ROWS, "prior": 1.0, "priors": (1.0,), "bytes": ROWS * width},
        **{"shape": SHAPE, "kind": "latent", "dtype": "float16", "mean": (0.0,) * 4, "std": (1.0,) * 4},
        **{"classes": 0, "group": group, "parts": tuple(parts)},
    )
    stage.finish({}, [name for name, _ in parts], contents)


def reading(run: Run) -> dict[str, float]:
    """Samples per second of the first epoch, in which everything is verified, and of the second."""
    reader = Reader([run.cluster(0)], BATCH, seed=0)
    assert ROWS * int(np.prod(SHAPE)) * 2 > MEMORY
    found = {}
    with contextlib.closing(reader.batches()) as batches:
        for epoch in ("first epoch, verifying", "second epoch"):
            started = time.perf_counter()
            for _ in range(ROWS // BATCH):
                next(batches)
            found[epoch] = ROWS / (time.perf_counter() - started)
    return found


def training(run: Run) -> dict[str, float]:
    """Samples per second that an expert's training consumes, and the share of the time that it waits."""
    TimedReader.waited, TimedReader.batches_given = 0.0, 0
    with mock.patch.object(jobs, "Reader", TimedReader):
        jobs.expert(run, 0)
    elapsed = TimedReader.last - TimedReader.first
    samples = (TimedReader.batches_given - 1) * run.config.expert.batch
    return {"samples per second": samples / elapsed, "share waiting": TimedReader.waited / elapsed}


def demo(folder: Path, *overrides: str) -> Run:
    settings: RunConfig = config.load(RECIPE, [f"expert.steps={STEPS}", "expert.log_every=100", *overrides])
    return Run(folder / settings.name, settings)


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pixels = demo(folder)
        prepare(pixels)
        partition(pixels)
        latents = demo(folder, "name='latents'", "partition.clusters=1")
        write_latents(latents)
        speed = reading(latents)
        steps = {"demo": training(pixels), "demo's network on latents": training(latents)}
    consumed = max(facts["samples per second"] for facts in steps.values())
    waiting = max(facts["share waiting"] for facts in steps.values())
    ratios = {
        "latents per second vs 20 times what the demo consumes": min(speed.values()) / (20 * consumed),
        "share of a step spent waiting vs 2 %": 0.02 / max(waiting, 1e-6),
    }
    detail = {"samples per second, reading": speed, "training": steps}
    return {"benchmark": "reader", "ratios": ratios, "detail": detail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    show(measure(), parser.parse_args().json)


if __name__ == "__main__":
    main()

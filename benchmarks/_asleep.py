"""Experts that sleep instead of training: stages of a run like all others, for what machines and stores cost.

A step is a tenth of a second. Workers know them by `CUSTOMIZE`, which Python runs when it starts.
"""

import json
import os
import time
from pathlib import Path

from atoll.errors import Interrupted
from atoll.runs import Run, Stage, file_digest, replacing, stop_requests, write_json
from atoll.runs.graph import Kind
from atoll.runs.records import Contents

CUSTOMIZE = """
import atoll.runs.graph as graph
from benchmarks._asleep import KINDS
graph.KINDS = KINDS
"""
"""What `sitecustomize.py` on the path of all processes says."""
STEP_SECONDS, SAVE_STEPS = 0.1, 10
TALLY = "ATOLL_ASLEEP"
"""Environment variable: the folder in which all sleep is counted, also that which is lost."""


def made_from(run: Run, index: int) -> dict[str, int]:
    """Nothing but the seed."""
    return {"seed": run.config.seed}


def sleep(run: Run, index: int) -> Stage:
    """Sleep as many steps as the recipe says; what was slept by a save is not slept again."""
    stage = run.stage("experts", f"{index:02d}")
    if not stage.begin(made_from(run, index)):
        return stage
    folder = stage.path / "state"
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "latest.json"
    step = int(json.loads(saved.read_text())["step"]) if saved.is_file() else 0
    with stop_requests() as asked, _tally(index).open("a") as tally:
        while step < run.config.expert.steps:
            since = time.monotonic()
            time.sleep(STEP_SECONDS)
            step += 1
            tally.write(f"{time.monotonic() - since:.4f}\n")
            tally.flush()
            if step % SAVE_STEPS == 0:
                save(folder, step)
            if asked():
                save(folder, step)
                raise Interrupted("saved")
    (stage.path / "weights").write_text(f"slept {step} steps")
    stage.finish(made_from(run, index), ["weights"], Contents())
    return stage


def _tally(index: int) -> Path:
    return Path(os.environ[TALLY]) / f"{index:02d}"


def save(folder: Path, step: int) -> None:
    """A state and, written last, the pointer to it."""
    file = folder / f"{step:08d}.safetensors"
    with replacing(file) as beside:
        beside.write_text(str(step))
    write_json(folder / "latest.json", {"step": step, "file": file.name, "sha256": file_digest(file)})
    for old in folder.glob("*.safetensors"):
        if old != file:
            old.unlink()


KINDS = (
    Kind(
        "expert",
        made_from,
        "benchmarks._asleep:sleep",
        folder="experts/{index:02d}",
        count=lambda config: config.partition.clusters,
        alone=True,
    ),
)

"""How long a save holds training up, on one device or with several ranks, and whether the state is whole.

A run is trained as a user trains it; its lines of metrics tell when steps were taken. A save is somewhere in
the two windows beside it: their time less that of two ordinary windows is what it cost.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from atoll.runs import read_json, read_lines
from benchmarks._shown import show

SAVES = 4


class Line(NamedTuple):
    """When a step was taken."""

    step: int
    time: float


def stalls(lines: Sequence[Line], every: int) -> list[float]:
    """Seconds that each save cost, where windows lie on both sides of it."""
    windows = {b.step: b.time - a.time for a, b in itertools.pairwise(lines)}
    width = lines[1].step - lines[0].step
    saves = [step for step in windows if step % every == 0 and step + width in windows]
    beside = {step + side for step in saves for side in (0, width)}
    ordinary = statistics.median(seconds for step, seconds in windows.items() if step not in beside)
    return [windows[step] + windows[step + width] - 2 * ordinary for step in saves]


def recipe(size: dict[str, Any], batch: int, window: int, ranks: int) -> str:
    """One expert on the data that the package has, with a save every fifth window."""
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in size.items())
    steps = 5 * window * SAVES + 2 * window
    return f"""
name = "saves"
[data]
source = "fashion-5k"
[partition]
clusters = 1
[expert]
{settings}
batch = {batch}
steps = {steps}
log_every = {window}
save_every = {5 * window}
compile = "off"
[sample]
num = 1
steps = 1
[launch]
gpus = {float(ranks)}
"""


def measure(device: str, ranks: int, size: dict[str, Any], batch: int, window: int) -> dict[str, Any]:
    environment = {**os.environ, **({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""})}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "saves.toml"
        path.write_text(recipe(size, batch, window, ranks))
        command = [sys.executable, "-m", "atoll", "run", str(path)]
        subprocess.run(command, env={**environment, "ATOLL_RUNS": place}, check=True, stdout=sys.stderr)
        expert = Path(place) / "saves" / "experts" / "00"
        lines = [Line(line["step"], line["time"]) for line in read_lines(expert / "metrics.jsonl")]
        saved = read_json(expert / "state" / "latest.json")["step"]
        state = sum(file.stat().st_size for file in (expert / "state").rglob("*.safetensors"))
    cost, step = (
        stalls(lines, 5 * window),
        (lines[-1].time - lines[0].time) / (lines[-1].step - lines[0].step),
    )
    return {
        "benchmark": "saves",
        "ratios": {
            "a step's time, in time that a save holds training up": step
            / max(statistics.median(cost), step / 100)
        },
        "detail": {
            "device": device,
            "ranks": ranks,
            "seconds that each save cost": cost,
            "seconds of a step": step,
            "bytes of the state": state,
            "bytes a second": state / max(statistics.median(cost), 1e-3),
            "the last step that was saved": saved,
        },
    }


def for_a_card(free: float) -> tuple[dict[str, Any], int]:
    """The network and batch that fill a card; its state is 16 bytes a weight, 10 GB for DiT-XL."""
    from benchmarks import _card

    one = _card.sized(free, batches=(32,))
    return {"size": f"{one.size}/2"}, one.batch


SMALL: dict[str, Any] = {"width": 256, "depth": 6, "heads": 4, "patch": [4, 4]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu", help="auto takes a GPU where there is one")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that train together")
    parser.add_argument("--window", type=int, default=4, help="steps between two lines of metrics")
    options = parser.parse_args()
    from atoll import devices

    device = devices.pick(options.device, "--device")
    size, batch = SMALL, 4
    if device.type == "cuda":
        from benchmarks import _card

        size, batch = for_a_card(_card.free_memory(device))
    found = measure(device.type, options.ranks, size, batch * options.ranks, options.window)
    show(found, options.json)


if __name__ == "__main__":
    main()

"""Honest work of two builds of torch: one trains and keeps its states, the other replays every interval.

`python -m benchmarks._builds FOLDER --seeds 8`, then the same with the Python of another build: the first
call writes the states, a call by another build finds them and prints what it comes to beside them.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.net import adversaries as kit

from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.net.verification import bands, updates
from atoll.net.verification.comparison import Comparison
from atoll.net.work import arithmetic_here
from benchmarks.adversaries import CALIBRATION, exact

BUILD = "build.json"


def here() -> dict[str, str]:
    """This build, and what its numerics class is called."""
    return {"torch": torch.__version__, "class": bands.name_of(arithmetic_here())}


def world_of(number: int, seed: int) -> kit.World:
    """Small trainings, and of every fourth a wider one."""
    return kit.World(seed=seed, width=96, batch=64) if number % 4 == 3 else kit.World(seed=seed)


def train(folder: Path, seeds: int, first: int) -> None:
    """Honest states at every committed point."""
    for number in range(seeds):
        walk = world_of(number, first + number).steps(number % kit.CLUSTERS)
        place = folder / f"{number:02d}"
        place.mkdir(parents=True)
        for index in range(kit.INTERVALS * kit.SEGMENTS):
            write_tensors(place / f"{index + 1:03d}.safetensors", walk.go(kit.EVERY))
    (folder / BUILD).write_text(json.dumps({**here(), "seeds": seeds, "first": first}))


def replayed(folder: Path, number: int, seed: int) -> Iterator[Comparison]:
    """Every interval of a training taken again from the state that was kept."""
    walk = world_of(number, seed).steps(number % kit.CLUSTERS)
    states = [read_tensors(path) for path in sorted((folder / f"{number:02d}").iterdir())]
    for index in range(1, len(states)):
        walk.again(states[index - 1], index * kit.EVERY)
        yield updates.compare(states[index - 1], states[index], walk.go(kit.EVERY))


def compared(folder: Path, seeds: int, first: int) -> tuple[bands.Band, dict[str, Any]]:
    """The band of two builds from some trainings, and the others held to it; also to the band of rounding."""
    groups = [list(replayed(folder, number, first + number)) for number in range(seeds)]
    band = bands.calibrate([one for group in groups[:CALIBRATION] for one in group])
    rest = [one for group in groups[CALIBRATION:] for one in group]
    judged = {
        "calibrated": [bands.judge(one, band, same_class=False) for one in rest],
        "rounding": [bands.judge(one, bands.rounding(one), same_class=False) for one in rest],
    }
    models = [one.kinds["model"] for one in rest]
    return band, {
        "intervals": len(rest),
        "bit_equal": sum(one.equal for one in rest) / len(rest),
        "largest_relative": max(one.relative for one in models),
        "largest_plain": max(one.plain for one in models),
        "band_relative": band.limits["model"].relative,
        **{f"false_alarms_{name}": one.count("differs") for name, one in judged.items()},
        **{f"inconclusive_{name}": one.count("inconclusive") for name, one in judged.items()},
        "false_alarms_at_most": exact(judged["calibrated"].count("differs"), len(rest)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=100, help="the first of their seeds")
    parser.add_argument(
        "--bands", type=Path, help="writes what is honest between both, for `atoll host --bands`"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not (arguments.folder / BUILD).is_file():
        train(arguments.folder, arguments.seeds, arguments.first)
        return
    known = json.loads((arguments.folder / BUILD).read_text())
    band, facts = compared(arguments.folder, known["seeds"], known["first"])
    answer = {"builds": [known["torch"], torch.__version__], **facts}
    if arguments.bands is not None:
        names = bands.pair(known["class"], here()["class"])
        arguments.bands.write_text(bands.Bands(pairs={names: band}).model_dump_json(indent=1) + "\n")
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()

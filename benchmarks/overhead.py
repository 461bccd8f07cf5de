"""What strangers' machines cost: the demo's run by a host and two workers here, against `atoll run`.

The same recipe, the same arithmetic and the same two cores; workers were measured before, as after any first
start. Both are timed from the first process to the last file. `--part 0.5` does half of all steps, of which
what is not training is the larger share; `--small` only shows that everything runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from atoll import config
from atoll.net.limits import Limits
from atoll.net.protocol import Numerics
from atoll.runs import write_json
from benchmarks._shown import show

RECIPE = "recipes/fashion.toml"
PINNED = [
    "start.precision=float32",
    "expert.precision=float32",
    "router.precision=float32",
    "start.compile=off",
    "expert.compile=off",
    "router.compile=off",
]
"""What a published run pins: else the two would not do the same work."""
SMALL = ["start.steps=20", "expert.steps=10", "router.steps=10", "sample.num=4", "sample.steps=4"]
WORKERS = 2


def part_of(share: float) -> list[str]:
    """The settings of a shorter run: this share of the steps of every training."""
    tree = config.load(Path(RECIPE))
    named = {name: getattr(tree, name) for name in ("start", "expert", "router")}
    return [f"{name}.steps={max(1, round(one.steps * share))}" for name, one in named.items()]


def command(*words: str) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "atoll", *words]


def alone(folder: Path, changes: list[str]) -> float:
    """Seconds of `atoll run`."""
    since = time.perf_counter()
    subprocess.run(
        command("run", RECIPE, *changes, "--json"),
        env={**os.environ, "ATOLL_RUNS": str(folder)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - since


def together(folder: Path, changes: list[str]) -> float:
    """Seconds of a host and its workers, until the run's folder is whole."""
    homes = [folder / f"worker-{number}" for number in range(WORKERS)]
    for home in homes:
        home.mkdir(parents=True)
        facts = {"speed": 2e10, "memory": 1 << 40, "gpu": False, "numerics": Numerics().model_dump()}
        limits = Limits(cpus=1, gpus=0).variables()
        write_json(home / "measured.json", {**facts, "settings": limits, "date": time.time()})
    environment = {**os.environ, "ATOLL_RUNS": str(folder), "OMP_NUM_THREADS": "1"}
    since = time.perf_counter()
    options = ["--port", "0", "--quorum", "1", "--linger", "0", "--json"]
    running: list[subprocess.Popen[str]] = []
    try:
        host = subprocess.Popen(
            command("host", RECIPE, *changes, *options), stdout=subprocess.PIPE, text=True, env=environment
        )
        running.append(host)
        assert host.stdout is not None
        address = json.loads(host.stdout.readline())["address"]
        for home in homes:
            words = ["join", address, "--home", str(home), "--cpus", "1", "--gpus", "0", "--json"]
            with (home / "log").open("w") as log:
                running.append(
                    subprocess.Popen(command(*words), stdout=log, stderr=log, env=environment, text=True)
                )
        answer = json.loads(host.stdout.read().splitlines()[-1])
        if not answer["finished"]:
            raise RuntimeError("the host ended before the run did")
        return time.perf_counter() - since
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
            process.wait()


def digests(folder: Path) -> dict[str, Any]:
    """What the stages of a run hold, but for its page, which tells the time."""
    records = {path.parent: json.loads(path.read_text()) for path in folder.glob("*/**/done.json")}
    return {
        place.relative_to(folder).as_posix(): record["files"]
        for place, record in records.items()
        if "network" not in place.parts and place.name != "report"
    }


def measure(settings: list[str]) -> dict[str, Any]:
    """Both, one after the other."""
    changes = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="atoll-overhead-") as name:
        folder = Path(name)
        strangers = together(folder / "together", changes)
        own = alone(folder / "alone", changes)
        runs = [next((folder / one).glob("*/resolved.json")).parent for one in ("alone", "together")]
        same = digests(runs[0]) == digests(runs[1])
    return {
        "benchmark": "overhead",
        "ratios": {"`atoll run`, seconds of the same run by two workers": own / strangers},
        "detail": {
            "seconds of `atoll run`": round(own, 1),
            "seconds of a host and two workers": round(strangers, 1),
            "times as long": round(strangers / own, 3),
            "the same bits": same,
            "load of the machine": round(os.getloadavg()[0], 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--part", type=float, default=1.0, help="share of the steps of every training")
    options = parser.parse_args()
    shorter = SMALL if options.small else part_of(options.part)
    show(measure([*PINNED, *shorter]), options.json)


if __name__ == "__main__":
    main()

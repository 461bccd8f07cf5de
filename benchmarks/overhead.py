"""What strangers' machines cost: the demo's run by a host and two workers here, against `atoll run`.

The same recipe, the same arithmetic (one thread for every job on both sides: threads are a part of its class)
and the same two cores; workers were measured before, as after any first start. Both are timed from the first
process to the last file, and must come to the same bits. `--part 0.5` does half of all steps, of which what
is not training is the larger share; `--small` only shows that everything runs. `--folder F` keeps both runs
and makes none again that is there, so that they can be made one after the other with `--only`.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
    "sample.precision=float32",
    "sample.compile=off",
]
"""What a published run pins: else the two would not do the same work."""
ARITHMETIC = {"OMP_NUM_THREADS": "1"}
"""Of every process: what is drawn by two threads has other bits than what is drawn by one."""
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
        env={**os.environ, **ARITHMETIC, "ATOLL_RUNS": str(folder)},
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
    environment = {**os.environ, **ARITHMETIC, "ATOLL_RUNS": str(folder)}
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


def phases(folder: Path, began: float) -> dict[str, Any]:
    """When each unit was leased and handed in, in seconds since the host was started."""
    database = sqlite3.connect(folder / "network" / "coordinator.db")
    rows = database.execute(
        "SELECT t.name, l.device, l.created, s.created FROM leases l JOIN tasks t ON t.id = l.task "
        "JOIN submissions s ON s.lease = l.id ORDER BY l.created"
    ).fetchall()
    database.close()
    devices = sorted({device for _, device, _, _ in rows})
    return {
        f"{name} by worker {devices.index(device)}": [round(leased - began, 1), round(handed - began, 1)]
        for name, device, leased, handed in rows
    }


WAYS = {"together": together, "alone": alone}


def made(way: str, folder: Path, changes: list[str]) -> dict[str, float]:
    """When a run began and how long it took; one that was made before is not made again."""
    note = folder / f"{way}.json"
    if not note.exists():
        began = time.time()
        seconds = WAYS[way](folder / way, changes)
        write_json(note, {"began": began, "seconds": seconds})
    return dict(json.loads(note.read_text()))


def measure(settings: list[str], folder: Path, ways: Sequence[str]) -> dict[str, Any]:
    """Both, one after the other; what there is to say once both are there."""
    changes = [word for setting in settings for word in ("--set", setting)]
    there = [way for way in WAYS if way in ways or (folder / f"{way}.json").exists()]
    times = {way: made(way, folder, changes) for way in there}
    seconds = {way: round(one["seconds"], 1) for way, one in times.items()}
    detail: dict[str, Any] = {"seconds": seconds, "load of the machine": round(os.getloadavg()[0], 1)}
    answer: dict[str, Any] = {"benchmark": "overhead", "ratios": {}, "detail": detail}
    if len(times) == len(WAYS):
        runs = {way: next((folder / way).glob("*/resolved.json")).parent for way in WAYS}
        held = {way: digests(run) for way, run in runs.items()}
        own, strangers = times["alone"]["seconds"], times["together"]["seconds"]
        answer["ratios"] = {"`atoll run`, seconds of the same run by two workers": own / strangers}
        detail["times as long"] = round(strangers / own, 3)
        detail["the same bits"] = held["alone"] == held["together"]
        detail["stages of other bits"] = [
            name for name, files in held["alone"].items() if held["together"].get(name) != files
        ]
        detail["units"] = phases(runs["together"], times["together"]["began"])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--part", type=float, default=1.0, help="share of the steps of every training")
    parser.add_argument("--only", choices=sorted(WAYS), help="one of the two; needs --folder")
    parser.add_argument("--folder", type=Path, help="where both runs are kept")
    options = parser.parse_args()
    shorter = SMALL if options.small else part_of(options.part)
    ways = [options.only] if options.only else list(WAYS)
    with tempfile.TemporaryDirectory(prefix="atoll-overhead-") as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        show(measure([*PINNED, *shorter], folder, ways), options.json)


if __name__ == "__main__":
    main()

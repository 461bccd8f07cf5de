"""A run on strangers' machines, all of them this one: a host, three workers of which one dies, pictures.

make demo-network        # or: python examples/demo_network.py FOLDER RECIPE [--set key=value …]
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SMALL = ["start.steps=400", "expert.steps=100", "router.steps=200", "sample.num=16", "name=network"]


def atoll(*arguments: str, **given: object) -> "subprocess.Popen[str]":
    """A command of its own."""
    return subprocess.Popen([sys.executable, "-m", "atoll", *arguments], text=True, **given)  # type: ignore[call-overload,no-any-return]


def main(folder: Path, recipe: str, settings: list[str]) -> int:
    """Host, join, kill, finish."""
    since, runs = time.monotonic(), folder / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "ATOLL_RUNS": str(runs), "OMP_NUM_THREADS": "1"}
    changes = [word for setting in settings for word in ("--set", setting)]
    options = ["--port", "0", "--quorum", "1", "--linger", "15", "--json"]
    host = atoll("host", recipe, *changes, *options, stdout=subprocess.PIPE, env=environment)
    assert host.stdout is not None
    address = json.loads(host.stdout.readline())["address"]
    print(f"A coordinator is at {address}: open it in a browser.", flush=True)
    workers, logs = [], [folder / f"worker-{number}.log" for number in range(3)]
    for number, log in enumerate(logs):
        with log.open("w") as file:
            home = ["--home", str(folder / f"worker-{number}"), "--cpus", "1"]
            workers.append(atoll("join", address, *home, stdout=file, stderr=file, env=environment))
    print(f"Three workers have joined; what they say: {folder}/worker-*.log", flush=True)
    try:
        victim = workers[0]
        while host.poll() is None and victim.poll() is None:
            time.sleep(0.5)
            if _last(logs[0]).startswith("training "):
                victim.send_signal(signal.SIGKILL)
                print(f"Worker 0 was killed in the middle of {_last(logs[0])!r}; it comes back.", flush=True)
                victim.wait()
                with logs[0].open("a") as file:
                    home = ["--home", str(folder / "worker-0"), "--cpus", "1"]
                    workers[0] = atoll("join", address, *home, stdout=file, stderr=file, env=environment)
                break
        answer = json.loads(host.stdout.read().splitlines()[-1])
    finally:
        for process in (*workers, host):
            if process.poll() is None:
                process.terminate()
            process.wait()
        host.stdout.close()
    print(f"Finished after {time.monotonic() - since:.0f} s: {answer['run']}/samples/grid.png")
    return 0 if answer["finished"] else 1


def _last(log: Path) -> str:
    return (log.read_text().strip().splitlines() or [""])[-1]


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo-network")
    chosen = sys.argv[3:] if len(sys.argv) > 3 else SMALL
    sys.exit(main(place, sys.argv[2] if len(sys.argv) > 2 else "recipes/fashion.toml", chosen))

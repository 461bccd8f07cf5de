"""Training and sampling beside other programs: one that spins on every core, against the same machine alone.

Everything is started as a user starts it, by `atoll run` and `atoll.load`, so that threads and waiting are as
they are by default. Fair is a half: as many programs as cores share them with ours. Three windows, alone,
busy, alone again; each of the two kinds counts with its mean.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from atoll import threads
from atoll.runs import Tail, read_lines

AIM = 0.4
SPIN = "while True: pass"
START_SECONDS = 180.0
"""Within which a training must have begun; twice as long as the slowest machine tried takes."""


class Size(NamedTuple):
    """What is trained and sampled."""

    clusters: int
    width: int
    depth: int
    heads: int
    patch: int
    batch: int


SIZES = {
    "the demo's size": Size(8, 96, 4, 4, 4, 8),
    "width 384": Size(1, 384, 6, 6, 2, 16),
}
RECIPE = """
name = "busy"
[data]
source = "fashion-5k"
[partition]
clusters = {clusters}
fine = 64
[expert]
width = {width}
depth = {depth}
heads = {heads}
patch = [{patch}, {patch}]
batch = {batch}
log_every = 2
compile = "off"
[router]
width = 64
depth = 2
heads = 2
patch = [4, 4]
batch = 32
compile = "off"
[sample]
num = 4
steps = 2
"""


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """One program that spins on every core, for as long as this lasts."""
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(threads.cores())]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def windows(rate: Callable[[], float]) -> dict[str, float]:
    """A rate alone, busy, alone again, and its ratio."""
    before = rate()
    with busy():
        beside = rate()
    alone = (before + rate()) / 2
    return {"alone": alone, "busy": beside, "ratio": beside / alone}


def train(folder: Path, recipe: Path, seconds: float) -> dict[str, float]:
    """Samples per second of all jobs of `atoll run`, which is stopped when it has been measured."""
    endless = ["--set", "expert.steps=1000000", "--set", "router.steps=1000000", "--set", "name=trained"]
    launcher = start(folder, ["run", str(recipe), *endless])
    try:
        experts = folder / "trained" / "experts"
        wait_until(lambda: total(experts) > 0, launcher)
        return windows(lambda: rate_of(experts, seconds))
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait()


def rate_of(experts: Path, seconds: float) -> float:
    """Steps of a window times the batch, by the clock of whoever took them."""
    time.sleep(1.0)  # what changed at the window's beginning has taken effect
    before = {path: Tail(path).latest() for path in experts.glob("*/metrics.jsonl")}
    time.sleep(seconds)
    rates = []
    for path, first in before.items():
        last = Tail(path).latest()
        if first and last["step"] > first["step"]:
            rates.append((last["step"] - first["step"]) / (last["time"] - first["time"]))
    return sum(rates) * json.loads((experts.parent / "resolved.json").read_text())["expert"]["batch"]


def total(experts: Path) -> int:
    """Lines of metrics that there are."""
    return sum(len(read_lines(path)) for path in experts.glob("*/metrics.jsonl"))


def wait_until(ready: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """An error if the process ends, or takes too long."""
    until = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise RuntimeError("the training did not begin; its reason is above")
        time.sleep(0.2)


def start(folder: Path, arguments: list[str]) -> "subprocess.Popen[str]":
    environment = {**os.environ, "ATOLL_RUNS": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "atoll", *arguments], env=environment, text=True, stdout=sys.stderr
    )


def sample(folder: Path, recipe: Path, seconds: float) -> dict[str, float]:
    """Samples per second of an ensemble in a process of its own."""
    steps = ["--set", "expert.steps=1", "--set", "router.steps=1", "--set", "name=sampled"]
    if start(folder, ["run", str(recipe), *steps]).wait():
        raise RuntimeError("the run to sample from failed; its reason is above")
    command = [sys.executable, "-m", "benchmarks.busy", "--sampler", str(folder / "sampled")]
    sampler = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sampler.stdin is not None
    assert sampler.stdout is not None

    def rate() -> float:
        assert sampler.stdin is not None
        assert sampler.stdout is not None
        sampler.stdin.write(f"{seconds}\n")
        sampler.stdin.flush()
        return float(sampler.stdout.readline())

    try:
        rate()  # the first samples of a process are slower
        return windows(rate)
    finally:
        sampler.stdin.close()
        sampler.wait()


def draw(run: str) -> None:
    """What the sampling process does: a line in, samples for so many seconds, samples per second out."""
    threads.settle()
    import atoll

    ensemble = atoll.load(run)
    for line in sys.stdin:
        since, made = time.perf_counter(), 0
        while time.perf_counter() - since < float(line):
            ensemble.sample(num=16, steps=4, seed=made)
            made += 16
        print(made / (time.perf_counter() - since), flush=True)


def measure(seconds: float, sizes: list[str]) -> dict[str, Any]:
    results: dict[str, dict[str, float]] = {}
    for name in sizes:
        with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
            folder = Path(place)
            recipe = folder / "busy.toml"
            recipe.write_text(RECIPE.format(**SIZES[name]._asdict()))
            results[f"training at {name}"] = train(folder, recipe, seconds)
            results[f"sampling at {name}"] = sample(folder, recipe, seconds)
    return {
        "benchmark": "busy",
        "ratios": {
            f"itself alone, {what} beside spinning processes (aim: {AIM})": rates["ratio"]
            for what, rates in results.items()
        },
        "detail": {
            "samples per second": results,
            "cores, and as many programs that spin": threads.cores(),
            "seconds of a window": seconds,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the three windows")
    parser.add_argument("--only", choices=list(SIZES), help="one of the sizes")
    parser.add_argument("--sampler", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sampler:
        draw(options.sampler)
        return
    results = measure(options.seconds, [options.only] if options.only else list(SIZES))
    if options.json:
        print(json.dumps(results))
        return
    for what, rates in results["detail"]["samples per second"].items():
        print(f"{what:32}alone {rates['alone']:8.1f}  busy {rates['busy']:8.1f}  ratio {rates['ratio']:.2f}")


if __name__ == "__main__":
    main()

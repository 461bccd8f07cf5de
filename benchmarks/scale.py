"""What Ray costs on top of plain processes, and how 64 experts on 16 failing machines fare."""

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from atoll import config
from atoll.data import encode, partition
from atoll.launch import driver, engine, on_ray
from atoll.runs import Run, graph

RECIPE = """
name = "scale"
[data]
source = "fashion-5k"
[partition]
clusters = 4
fine = 32
[expert]
width = 64
depth = 2
heads = 2
patch = [4, 4]
batch = 32
steps = {steps}
save_every = 100000
[launch]
at_once = 2
threads = 1
gpus = 0
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=["overhead", "simulation"], help="one of the two measurements")
    parser.add_argument(
        "--steps", type=int, default=400, help="of each expert, for the comparison with local"
    )
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="that an expert sleeps instead of training"
    )
    parser.add_argument(
        "--between", type=float, default=120.0, help="mean seconds between a machine's failures"
    )
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    ratios, detail = {}, {}
    # Ray writes of every lost machine to standard output, which is ours for the result.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        if options.only != "simulation":
            overhead = detail["the same four experts"] = compare(Path(folder), options.steps)
            ratios["--on local, in time of the same run --on ray (aim: 0.91)"] = (
                overhead["local"] / overhead["ray"]
            )
        if options.only != "overhead":
            simulated = detail["simulation"] = simulate(Path(folder), options)
            ratios[f"bound with lost work, in time of {options.experts} failing experts (aim: 0.83)"] = (
                simulated["bound with lost work"] / simulated["seconds"]
            )
    found = {"benchmark": "scale", "ratios": ratios, "detail": detail}
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))


def compare(folder: Path, steps: int) -> dict[str, float]:
    """The same four experts as plain processes and as Ray tasks, two at a time; start-up of Ray apart."""
    recipe = folder / "scale.toml"
    recipe.write_text(RECIPE.format(steps=steps))
    os.environ["ATOLL_RUNS"] = str(folder / "runs")
    engines = ("local", "ray")
    seconds, work = dict.fromkeys(engines, float("inf")), dict.fromkeys(engines, float("inf"))
    ray = on_ray.library()
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    ray.get(ray.remote(num_cpus=1)(nap).remote(0))  # its first worker process has started
    try:
        for turn in range(2):
            for name in engines[:: 1 - 2 * (turn % 2)]:
                run = fresh(recipe, f"{name}-{turn}")
                jobs = [driver.job_of(node) for node in graph.nodes(run) if node.kind.name == "expert"]
                since, used = time.perf_counter(), cpu_seconds()
                with engine.opened(name, engine.Place(run.path, run.config.launch, run)) as opened:
                    driver.run_jobs(jobs, opened, lambda statuses: None)
                seconds[name] = min(seconds[name], time.perf_counter() - since)
                work[name] = min(work[name], cpu_seconds() - used)
    finally:
        ray.shutdown()
    return {**seconds, **{f"{engine}, of CPU": work[engine] for engine in engines}}


def cpu_seconds() -> float:
    """What this process and all below it have used of the CPU; those that have ended count as their parents'.

    Where other work shares the machine, this says more than the clock does.
    """
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            used[int(path.parent.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def fresh(recipe: Path, name: str) -> Run:
    run = Run.create(config.load(recipe, [f"name={name}"]), recipe)
    encode.prepare(run)
    partition.partition(run)
    return run


def simulate(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Experts that sleep, on machines that are killed and replaced: seconds, and the fewest possible."""
    from ray.cluster_utils import Cluster

    ray = on_ray.library()
    memory = {"memory": 10**9, "object_store_memory": 80 * 10**6}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
    nodes = [cluster.add_node(num_cpus=1, wait=False, **memory) for _ in range(options.nodes)]
    cluster.wait_for_nodes(timeout=300)
    ray.init(address=cluster.address, log_to_driver=False)
    places = folder / "sleepers"
    places.mkdir()
    draw = random.Random(0)
    try:
        warm = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(nap)
        ray.get([warm.remote(1) for _ in range(options.nodes)])  # every machine has a worker process
        expert = ray.remote(num_cpus=1, max_retries=-1, scheduling_strategy="SPREAD")(asleep)
        began = time.monotonic()
        waiting = [
            expert.remote(str(places / f"{index:02d}"), options.seconds) for index in range(options.experts)
        ]
        failures, absent = 0, 0.0
        due = draw.expovariate(options.nodes / options.between)
        while waiting:
            _, waiting = ray.wait(waiting, timeout=0.1)
            if time.monotonic() - began >= due and waiting:
                since = time.monotonic()
                victim = nodes.pop(draw.randrange(len(nodes)))
                cluster.remove_node(victim, allow_graceful=False)
                nodes.append(cluster.add_node(num_cpus=1, **memory))
                absent += time.monotonic() - since
                failures += 1
                due = time.monotonic() - began + draw.expovariate(options.nodes / options.between)
        seconds = time.monotonic() - began
    finally:
        ray.shutdown()
        with contextlib.suppress(Exception):
            cluster.shutdown()
    slept = sum(float(word) for path in places.glob("[0-9][0-9]") for word in path.read_text().split())
    repeated = slept - options.experts * options.seconds
    bound = options.experts * options.seconds / options.nodes
    return {
        "experts": options.experts,
        "machines": options.nodes,
        "mean seconds between failures of a machine": options.between,
        "failures": failures,
        "seconds": seconds,
        "bound without failures": bound,
        "seconds of work done twice": repeated,
        "seconds for which a machine was missing": absent,
        "bound with lost work": bound + (repeated + absent) / options.nodes,
        "seconds over bound with lost work": seconds / (bound + (repeated + absent) / options.nodes),
    }


def nap(seconds: float) -> None:
    """Nothing, for a while."""
    time.sleep(seconds)


SAVE_SECONDS = 1.0


def asleep(place: str, seconds: float) -> None:
    """An expert that sleeps instead of training; what it has slept by a save is not slept again."""
    saved = Path(f"{place}.state")
    done = float(saved.read_text()) if saved.is_file() else 0.0
    since = time.monotonic()
    while done < seconds:
        turn = min(0.1, seconds - done)
        time.sleep(turn)
        done += turn
        with Path(place).open("a") as file:  # all sleep is counted, also that which is lost
            file.write(f"{time.monotonic() - since:.4f}\n")
        since = time.monotonic()
        if int(done / SAVE_SECONDS) > int((done - turn) / SAVE_SECONDS):
            beside = saved.with_suffix(".partial")
            beside.write_text(str(done))
            beside.replace(saved)


if __name__ == "__main__":
    main()

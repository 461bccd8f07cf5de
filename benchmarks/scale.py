"""What Ray costs on top of plain processes, and how 64 experts on 16 failing machines fare."""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from atoll import config
from atoll.data import encode, partition
from atoll.launch import driver, engine, leased, on_ray
from atoll.runs import Run, graph
from benchmarks import _asleep
from benchmarks._shown import show

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
    parser.add_argument("--lease", type=float, default=6.0, help="seconds after which silence counts")
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
    show(found, options.json)


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
                jobs = driver.jobs_of([node for node in graph.nodes(run) if node.kind.name == "expert"])
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
    """Experts that sleep, on machines that are killed and replaced: seconds, and the fewest possible.

    Driver, engine, leases and stages are those of any run that lives in a store; only what an expert does
    when its turn has come is sleep.
    """
    run = sleepers(folder, options)
    machines = Machines(options.nodes, options.between)
    try:
        place = engine.Place(run.path, run.config.launch, run)
        with engine.opened("ray", place) as opened:
            jobs = driver.jobs_of(graph.nodes(run))
            machines.began = time.monotonic()
            driver.run_jobs(jobs, opened, lambda statuses: machines.fail_when_due())
        seconds = time.monotonic() - machines.began
    finally:
        machines.close()
    tally = Path(os.environ[_asleep.TALLY])
    slept = sum(float(word) for path in tally.iterdir() for word in path.read_text().split())
    repeated = slept - options.experts * options.seconds
    bound = options.experts * options.seconds / options.nodes
    least = bound + (repeated + machines.absent) / options.nodes
    return {
        "experts": options.experts,
        "machines": options.nodes,
        "mean seconds between failures of a machine": options.between,
        "seconds of a lease": options.lease,
        "failures": machines.failures,
        "seconds": seconds,
        "bound without failures": bound,
        "seconds of work done twice": repeated,
        "seconds for which a machine was missing": machines.absent,
        "bound with lost work": least,
        "seconds over bound with lost work": seconds / least,
    }


def sleepers(folder: Path, options: argparse.Namespace) -> Run:
    """A run in a store whose experts sleep, known to every process that starts from here on."""
    for name in ("path", "tally", "scratch", "store"):
        (folder / name).mkdir()
    (folder / "path" / "sitecustomize.py").write_text(_asleep.CUSTOMIZE)
    paths = [str(folder / "path"), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), _asleep.TALLY: str(folder / "tally")}
    os.environ |= {"ATOLL_SCRATCH": str(folder / "scratch"), "ATOLL_RUNS": str(folder / "runs")}
    graph.KINDS = _asleep.KINDS
    tree = {
        "name": "asleep",
        "partition": {"clusters": options.experts},
        "expert": {
            **{"width": 16, "depth": 1, "heads": 2, "batch": 1},  # Ray keeps the memory that the plan counts
            "steps": max(1, round(options.seconds / _asleep.STEP_SECONDS)),
        },
        "launch": {
            **{"store": str(folder / "store"), "lease": options.lease, "retries": 1000},
            **{"gpus": 0.0, "threads": 1},
        },
    }
    run = Run.create(config.validate(tree, "the sleepers"))
    leased.look(run)
    return run


class Machines:
    """A Ray cluster of processes of this computer, whose machines are killed now and then and replaced."""

    MEMORY: ClassVar = {"memory": 10**9, "object_store_memory": 80 * 10**6}

    def __init__(self, count: int, between: float) -> None:
        from ray.cluster_utils import Cluster

        self.ray, self.random = on_ray.library(), random.Random(0)
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **self.MEMORY})
        self.nodes = [self.cluster.add_node(num_cpus=1, wait=False, **self.MEMORY) for _ in range(count)]
        self.cluster.wait_for_nodes(timeout=300)
        self.ray.init(address=self.cluster.address, log_to_driver=False)
        warm = self.ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(nap)
        self.ray.get([warm.remote(1) for _ in range(count)])  # every machine has a worker process
        self.rate = count / between
        self.began = time.monotonic()
        self.due = self.random.expovariate(self.rate)
        self.failures, self.absent = 0, 0.0

    def fail_when_due(self) -> None:
        """Kill a machine and add another, if it is time."""
        since = time.monotonic()
        if since - self.began < self.due:
            return
        victim = self.nodes.pop(self.random.randrange(len(self.nodes)))
        self.cluster.remove_node(victim, allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=1, **self.MEMORY))
        self.absent += time.monotonic() - since
        self.failures += 1
        self.due = time.monotonic() - self.began + self.random.expovariate(self.rate)

    def close(self) -> None:
        """End all of them."""
        self.ray.shutdown()
        with contextlib.suppress(Exception):
            self.cluster.shutdown()


def nap(seconds: float) -> None:
    """Nothing, for a while."""
    time.sleep(seconds)


if __name__ == "__main__":
    main()

"""What does one model cost that is distilled from many, and how few steps does it need?

On Fashion-MNIST: a monolith with a batch of 32; eight experts for as much compute, half of which is a start
that they have in common, as HDDM's experts have; students taught by the expert of each sample, which begin
with the mean of the experts. A student's FLOPs are a third of the monolith's, or the same, its teacher's
passes included and the experts' own training not, as the DDM paper counts. Then a few-step student of the
latter, and the former again on two sites that meet every 25 steps.
Distances are Fréchet's on a classifier's features, all samples from the same noise.
"""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import atoll
from atoll import config
from atoll.config import NetworkConfig
from atoll.data import partition
from atoll.models import costs
from atoll.runs import Run, digest, file_digest, read_json, write_json
from atoll.train import few_step, jobs, rounds, student
from benchmarks.studies import ground
from benchmarks.studies.ground import CLUSTERS, Ground

STUDY = "students"
NETWORK = {"width": 96, "depth": 4, "heads": 4, "patch": [4, 4]}
TRAINING = {
    "lr": 3e-3,
    "warmup": 50,
    "decay": "cosine",
    "ema": 0.99,
    "times": "logit-normal",
    "log_every": 100,
    "save_every": 200,
}
SITES = [[0, 1, 2, 3], [4, 5, 6, 7]]
TWICE = ("student at a third", "student at as much")
"""Those who are distilled on sites as well; `APART` is said of them, and `MORE` of many samples."""
APART, MORE = ", two sites", ", more samples"


def sizes(quick: bool) -> dict[str, Any]:
    if quick:
        return {
            "monolith": {"steps": 16, "batch": 8},
            "start": {"steps": 16, "batch": 4},
            "expert": {"steps": 8, "batch": 1, "lr": 1e-3},
            "third": {"steps": 8, "batch": 4, "init": "average", "lr": 1e-3},
            "equal": {"steps": 24, "batch": 4, "init": "average", "lr": 1e-3},
            "sites": {"inner": 5},
            "apart": {},
            "few": {"trajectories": 4, "steps": 4, "batch": 8, "grid": 4, "lr": 1e-3},
            "num": 80,
            "pair": 80,
            "solver": 3,
            "real": 500,
            "classifier": 60,
        }
    return {
        "monolith": {"steps": 1600, "batch": 32},
        "start": {"steps": 3200, "batch": 8},
        "expert": {"steps": 800, "batch": 4, "lr": 1e-3},
        "third": {"steps": 1600, "batch": 8, "init": "average", "lr": 1e-3},
        "equal": {"steps": 4800, "batch": 8, "init": "average", "lr": 1e-3},
        "sites": {"inner": 25, "optimiser": "merged"},
        "apart": {},
        "few": {"trajectories": 3000, "steps": 100, "batch": 8, "grid": 16, "lr": 4e-4},
        "num": 1000,
        "pair": 4000,
        "solver": 50,
        "real": 10_000,
        "classifier": 1500,
    }


def alone(on: Ground, seed: int, name: str, settings: Mapping[str, Any]) -> Run:
    """One model on all data."""
    tree = {
        "name": f"students-{name}-{seed}",
        "seed": seed,
        "data": {"source": on.source},
        "partition": {"clusters": 1},
        "expert": {**NETWORK, **TRAINING, **settings},
    }
    run = _opened(on, tree)
    partition.partition(run)
    jobs.expert(run, 0)
    return run


def experts(on: Ground, seed: int, start: Run, settings: Mapping[str, Any]) -> Run:
    """Eight experts that go on from a common start, each alone."""
    said = {**NETWORK, **TRAINING, **settings, "init": str(start.expert(0).path)}
    run = on.run(f"students-{seed}", seed=seed, expert=said)
    for k in range(CLUSTERS):
        jobs.expert(run, k)
    return run


def variant(on: Ground, of: Run, name: str, **settings: Any) -> Run:
    """Another student of the same experts, in a run of its own."""
    tree = of.config.model_dump(mode="json")
    tree["student"] = {**NETWORK, **TRAINING, **settings}
    # named by what it is, so that other settings are tried beside it and nothing is trained twice
    tree["name"] = f"students-{name}-{digest(tree['student'])[:8]}-{of.config.seed}"
    run = _opened(on, tree)
    _link(run, of, "partition", "experts")
    return run


def central(on: Ground, of: Run, name: str, size: Mapping[str, Any]) -> Run:
    """One student of all experts, made in one place."""
    run = variant(on, of, name, **size[name])
    student.dense(run)
    return run


def on_sites(on: Ground, of: Run, name: str, size: Mapping[str, Any]) -> Run:
    """The same on two sites, with what is different there."""
    sites = {"clusters": SITES, **size["sites"]}
    run = variant(on, of, "sites", **{**size[name], **size["apart"]}, sites=sites)
    rounds.all_rounds(run)
    return run


def _link(run: Run, of: Run, *folders: str) -> None:
    for folder in folders:
        if not (run.path / folder).is_symlink():
            (run.path / folder).symlink_to((of.path / folder).resolve())


def _opened(on: Ground, tree: dict[str, Any]) -> Run:
    run = Run(on.out / "runs" / tree["name"], config.validate(tree, tree["name"]))
    write_json(run.path / "resolved.json", run.config.model_dump(mode="json"))
    _link(run, on.base, "data")
    return run


def distance(
    on: Ground, real: Tensor, path: Path, size: Mapping[str, Any], steps: int | None = None, **how: Any
) -> float:
    """How far a model's samples are from real ones; what was measured before is not sampled again."""
    num, steps = how.pop("num", size["num"]), steps or size["solver"]
    weights = [file_digest(file) for file in sorted(path.rglob("weights.safetensors"))]
    key = [weights, steps, num, size["real"], *([how] if how else [])]
    known = on.out / "distances" / f"{digest(key)[:24]}.json"
    if not known.is_file():
        samples = atoll.load(path).sample(num, steps=steps, seed=1, batch=100, **how)
        write_json(known, ground.frechet(on.features(samples), real))
    return float(read_json(known))


def distance_of_many(on: Ground, real: Tensor, path: Path, size: Mapping[str, Any]) -> float:
    """1,000 samples of a network and another 1,000 of it differ by more than two such networks do."""
    return distance(on, real, path, size, 15, num=size["pair"], solver="dpm++")


def real_features(on: Ground, num: int) -> Tensor:
    batches = on.reader(500, 7).batches()
    try:
        return torch.cat([on.features(next(batches).x_0) for _ in range(-(-num // 500))])[:num]
    finally:
        batches.close()


def flops(size: Mapping[str, Any]) -> dict[str, float]:
    """Of training: three passes for a sample and its gradients, one more for its teacher."""
    network = costs.Network(NetworkConfig.model_validate(NETWORK), (1, 28, 28))
    forward = costs.forward_flops(network)
    few = size["few"]
    lessons = few["trajectories"] * few["batch"] * (3 + few["grid"] / few_step.PAIRS_OF_A_TRAJECTORY)
    lessons += few["steps"] * few["batch"] * (3 + 1 + 2 * 0.25)

    def samples(name: str) -> int:
        return int(size[name]["steps"] * size[name]["batch"])

    return {
        "monolith": 3 * forward * samples("monolith"),
        "experts": 3 * forward * (samples("start") + CLUSTERS * samples("expert")),
        "student at a third": 4 * forward * samples("third"),
        "student at as much": 4 * forward * samples("equal"),
        "few-step": forward * lessons,
    }


def study(on: Ground, seed: int, size: dict[str, Any]) -> dict[str, Any]:
    """Train what is not there yet, and measure all of it."""
    since = time.process_time()
    seconds: dict[str, float] = {}

    def lap(name: str) -> None:
        seconds[name] = time.process_time() - since - sum(seconds.values())

    real = real_features(on, size["real"])
    lap("ground")
    whole = alone(on, seed, "monolith", size["monolith"])
    lap("monolith")
    start = alone(on, seed, "start", size["start"])
    many = experts(on, seed, start, size["expert"])
    lap("start and experts")
    third, equal = (central(on, many, name, size) for name in ("third", "equal"))
    lap("students")
    few = {key: TRAINING[key] for key in ("warmup", "decay", "ema", "log_every", "save_every")}
    quick = variant(on, many, "few", **size["equal"], few={**few, **size["few"]})
    _link(quick, equal, "student")
    few_step.few_step(quick)
    lap("few-step")
    apart, longer = (on_sites(on, many, name, size) for name in ("third", "equal"))
    lap("sites")
    measured: dict[str, tuple[Path, int | None]] = {
        "monolith": (whole.path, None),
        "experts, ancestral": (many.path, None),
        "student at a third": (third.path / "student", None),
        "student at as much": (equal.path / "student", None),
        "student at a third, two sites": (apart.path / "student", None),
        "student at as much, two sites": (longer.path / "student", None),
        "student at as much, Euler, 4 steps": (equal.path / "student", 4),
    }
    for steps in (1, 2, 4, 8):
        measured[f"few-step, {steps}"] = (quick.path / "few-step", steps)
        warm = quick.path / "few-step" / "trajectories"
        measured[f"few-step after trajectories only, {steps}"] = (warm, steps)
    found = {name: distance(on, real, path, size, steps) for name, (path, steps) in measured.items()}
    for name in [which + where for which in TWICE for where in ("", APART)]:
        found[name + MORE] = distance_of_many(on, real, measured[name][0], size)
    lap("sampling")
    return {"seed": seed, "size": size, "frechet": found, "flops": flops(size), "cpu_seconds": seconds}


def sites_alone(on: Ground, seed: int, size: dict[str, Any]) -> dict[str, Any]:
    """What distilling on sites costs with the monolith's FLOPs, and nothing else."""
    real = real_features(on, size["real"])
    start = alone(on, seed, "start", size["start"])
    many = experts(on, seed, start, size["expert"])
    both = central(on, many, "equal", size), on_sites(on, many, "equal", size)
    each = {
        name + MORE: distance_of_many(on, real, run.path / "student", size)
        for name, run in zip((TWICE[1], TWICE[1] + APART), both, strict=True)
    }
    changed = {"steps of a round": size["sites"]["inner"], **size["apart"]}
    return {"seed": seed, "changed": changed, "frechet": each}


def ratios(found: Mapping[str, float]) -> dict[str, float]:
    """Above 1 where the student is ahead."""
    return {
        "monolith, student at a third of its FLOPs": found["monolith"] / found["student at a third"],
        "monolith, student at the same FLOPs": found["monolith"] / found["student at as much"],
        "student in 50 steps, few-step in 4": found["student at as much"]
        / found["few-step after trajectories only, 4"],
        "student in 50 steps, few-step in 1": found["student at as much"]
        / found["few-step after trajectories only, 1"],
        **{f"{name}, two sites": found[name + MORE] / found[name + APART + MORE] for name in TWICE},
    }


def table(results: list[dict[str, Any]]) -> str:
    """Mean over seeds and its standard error."""
    spent = results[0]["flops"]
    lines = ["| model | training FLOPs | Fréchet distance |", "|---|---|---|"]
    for name in results[0]["frechet"]:
        cost = next((f"{spent[key]:.2e}" for key in reversed(spent) if f"{name},".startswith(f"{key},")), "")
        cells = ground.mean_and_error([result["frechet"][name] for result in results])
        lines.append(f"| {name} | {cost} | {cells} |")
    lines += ["", "| a peer, and what is compared with it | peer's distance over it |", "|---|---|"]
    each = [ratios(result["frechet"]) for result in results]
    lines += [f"| {key} | {ground.mean_and_error([one[key] for one in each])} |" for key in each[0]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="fashion-5k", help="what recipes call data.source")
    parser.add_argument("--work", type=Path, default=Path("studies"), help="where runs and results are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a minute, to see that all of it works")
    parser.add_argument(
        "--set", dest="changes", action="append", default=[], metavar="KEY=VALUE", help="change a size"
    )
    parser.add_argument("--table", action="store_true", help="only the table of all seeds that are finished")
    parser.add_argument("--sites", action="store_true", help="nothing but sites with the monolith's FLOPs")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        size = config.merged(sizes(options.quick), config.assignments(options.changes))
        on = Ground(options.data, options.work, classifier_steps=size["classifier"])
        if options.sites:
            print(json.dumps(sites_alone(on, options.seed, size)))
            return
        write_json(options.work / f"{STUDY}-{options.seed}.json", study(on, options.seed, size))
    results = ground.finished(options.work, STUDY)
    if options.json:
        each = [ratios(result["frechet"]) for result in results]
        mean = {key: sum(one[key] for one in each) / len(each) for key in each[0]}
        print(json.dumps({"benchmark": STUDY, "ratios": mean, "detail": results}))
    else:
        print(table(results))


if __name__ == "__main__":
    main()

"""How many training samples does a start from a converted checkpoint save?

One network learns to predict the noise on DiT's schedule from all of Fashion-MNIST: the older checkpoint.
Then experts learn the velocity of one cluster each: from nothing, from that checkpoint through the exact
velocity, or from it as published (blocks kept, new last layers, whole indices). Each is measured along the
way; the result is how many samples each needs to come as near to the data as the one from nothing at its
end (HDDM claims 1.2 times fewer).
"""

import shutil
import time
from collections.abc import Mapping
from typing import Any

import torch

from atoll.runs import Run, Stage, write_json
from atoll.sampling import building
from atoll.sampling.sampler import Sampler
from atoll.study.answers import to_reach
from atoll.train import jobs
from benchmarks.studies import ground
from benchmarks.studies.ground import NETWORK, TRAINING, Ground

STUDY = "initialisation"
STARTS = ("nothing", "exact", "published")


def sizes(quick: bool) -> dict[str, Any]:
    if quick:
        return {
            "before": 20,
            "stops": [10, 20],
            "batch": 8,
            "clusters": [0],
            "num": 60,
            "solver": 4,
            "classifier": 60,
        }
    return {
        "before": 1500,
        "stops": [50, 100, 200, 400, 700],
        "batch": 24,
        "clusters": [0, 4],
        "num": 400,
        "solver": 25,
        "classifier": 1500,
    }


def older(on: Ground, seed: int, size: Mapping[str, Any]) -> Stage:
    """The checkpoint to start from: one network on all data."""
    tree = {
        "name": f"older-{seed}",
        "seed": 1000 + seed,
        "data": {"source": on.source},
        "partition": {"clusters": 1},
        "expert": {
            **NETWORK,
            **TRAINING,
            "steps": size["before"],
            "batch": 32,
            "decay": "cosine",
            "path": "linear-beta",
            "prediction": "noise",
        },
    }
    from atoll import config
    from atoll.data import partition

    run = Run(on.out / "runs" / f"older-{seed}", config.validate(tree, "older"))
    write_json(run.path / "resolved.json", run.config.model_dump(mode="json"))
    if not (run.path / "data").is_symlink():
        (run.path / "data").symlink_to((on.base.path / "data").resolve())
    partition.partition(run)
    return jobs.expert(run, 0)


def distance(on: Ground, stage: Stage, cluster: int, seed: int, size: Mapping[str, Any]) -> float:
    """How far an expert's samples are from its cluster."""
    sampler = Sampler(building.lone(stage, torch.device("cpu")))
    samples = sampler.sample(size["num"], steps=size["solver"], seed=seed, batch=100)
    return ground.frechet(on.features(samples), on.reference[cluster])


def curve(
    on: Ground, start: str, cluster: int, seed: int, size: Mapping[str, Any], init: Stage
) -> list[float]:
    """Distances at the stops of one training, each a longer run that goes on from the last."""
    found: list[float] = []
    before: Stage | None = None
    for stop in size["stops"]:
        expert: dict[str, Any] = {"steps": stop, "batch": size["batch"]}
        if start != "nothing":
            expert |= {"init": str(init.path), "convert": start}
        run = on.run(f"{start}-{cluster}-{stop}-{seed}", seed=seed, expert=expert)
        stage = run.expert(cluster)
        if before is not None and not (stage.path / "state").exists():
            shutil.copytree(before.path / "state", stage.path / "state")
        before = jobs.expert(run, cluster)
        found.append(distance(on, before, cluster, seed, size))
    return found


def study(on: Ground, seed: int, size: dict[str, Any]) -> dict[str, Any]:
    init = older(on, seed, size)
    rows = []
    for cluster in size["clusters"]:
        curves = {start: curve(on, start, cluster, seed, size, init) for start in STARTS}
        goal = curves["nothing"][-1]
        saved = {start: size["stops"][-1] / to_reach(goal, size["stops"], curves[start]) for start in STARTS}
        rows.append({"cluster": cluster, "curves": curves, "times fewer samples": saved})
    return {"seed": seed, "size": size, "rows": rows}


def table(results: list[dict[str, Any]]) -> str:
    """Mean over seeds and clusters, and its standard error."""
    rows = [row for result in results for row in result["rows"]]
    size = results[0]["size"]
    stops = [stop * size["batch"] for stop in size["stops"]]
    head = " | ".join(f"Fréchet at {stop:,}" for stop in stops)
    lines = [f"| start | {head} | times fewer samples |", "|---" * (len(stops) + 2) + "|"]
    for start in STARTS:
        cells = [ground.mean_and_error([row["curves"][start][i] for row in rows]) for i in range(len(stops))]
        saved = ground.mean_and_error([row["times fewer samples"][start] for row in rows])
        lines.append(f"| {start} | {' | '.join(cells)} | {saved} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    options = ground.options(__doc__)
    if not options.table:
        since, size = time.process_time(), sizes(options.quick)
        on = Ground(options.data, options.out, classifier_steps=size["classifier"])
        found = study(on, options.seed, size)
        found["cpu_seconds"] = time.process_time() - since
        write_json(options.out / f"{STUDY}-{options.seed}.json", found)
    print(table(ground.finished(options.out, STUDY)))


if __name__ == "__main__":
    main()

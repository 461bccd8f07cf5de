"""What the axes of `recipes/studies/components.toml` cannot say: averages, what comes later, what goes.

    python -m benchmarks.studies.components RECIPE --data SET.npz [--leave 8] [--public OTHERS.npz]

One run is trained on all of SET. With LEAVE another one without that class; a component is made of the class
alone and added, and both are judged by all data. Otherwise the samples of one cluster are to be forgotten:
its part is dropped, a run is trained without them, and both are judged by the rest. Each has its own start;
with PUBLIC, samples that nobody will ever want forgotten, all go on from one that was trained on those. Runs
stay in `$ATOLL_RUNS` and are not made twice.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atoll import config, plan
from atoll.components import adding, making
from atoll.config import EvaluateConfig, RunConfig
from atoll.data import encode, partition
from atoll.data.store import Reader, to_values
from atoll.evaluate.intervals import over_repetitions
from atoll.evaluate.measure import Judge, sample_and_judge
from atoll.models import checkpoint
from atoll.runs import Run, Stage, graph, runs_folder, write_json
from atoll.runs.components import ComponentContents, Members, write_members
from atoll.runs.known import known
from atoll.runs.records import ExpertContents
from atoll.sampling import building
from atoll.sampling.opening import open_run_model
from atoll.sampling.sampler import Sampler

STRATEGIES = ("ancestral", "top-1")
SPLIT = 0
"""The cluster that is to be forgotten."""
Resolved = Callable[[str, Path], RunConfig]
"""The settings of a run by its name and its data."""


def subsets(data: Path, leave: int, folder: Path) -> dict[str, Path]:
    """The set without one class, and that class alone."""
    arrays = dict(np.load(data))
    chosen = {"without": arrays["labels"] != leave, "alone": arrays["labels"] == leave}
    files = {"whole": data}
    for name, rows in chosen.items():
        files[name] = folder / f"{data.stem}-{name}-{leave}.npz"
        if not files[name].is_file():
            np.savez(files[name], images=arrays["images"][rows])
    return files


def opened(resolved: RunConfig) -> Run:
    """A run with its clusters."""
    path = runs_folder() / resolved.name
    run = Run.open(path) if (path / "resolved.json").is_file() else Run.create(resolved)
    encode.prepare(run)
    partition.partition(run)
    return run


def trained(resolved: RunConfig) -> Run:
    """A run with all of its networks."""
    run = opened(resolved)
    for node in graph.nodes(run):
        if node.training is not None:
            node.make()
    return run


def component(recipe: Path, base: Run, data: Path, overrides: Sequence[str]) -> Stage[ComponentContents]:
    """The part of the class that was left out, made for this base."""
    out = runs_folder() / f"{base.config.name}-part"
    if not out.is_dir():
        resolved = config.load(recipe, [*overrides, f"name={base.config.name!r}"])
        run = Run.create(making.private_config(resolved, base, str(data)))
        making.make(run, base, out)
    return Stage(out, ComponentContents)


def averaged(run: Run, folder: Path) -> Sampler:
    """One network whose weights are the mean of the experts' weights."""
    experts = [run.expert(k) for k in range(run.config.partition.clusters)]
    weights = [checkpoint.read_tensors(one.path / checkpoint.WEIGHTS) for one in experts]
    mean = {name: torch.stack([each[name] for each in weights]).mean(0) for name in weights[0]}
    stage: Stage = Stage(folder)
    stage.begin({})
    checkpoint.write_tensors(folder / checkpoint.WEIGHTS, mean)
    blueprint = checkpoint.read_blueprint(experts[0].path / checkpoint.CONFIG)
    write_json(folder / checkpoint.CONFIG, blueprint.model_dump(mode="json"))
    stage.finish({}, [checkpoint.WEIGHTS, checkpoint.CONFIG], ExpertContents())
    return Sampler(building.lone(stage, torch.device("cpu")), run.config.sample)


def rest_of(run: Run, data: Path, split: int, folder: Path) -> Path:
    """The set without the samples of one cluster."""
    rows = Reader([run.cluster(split)], 1, 0).first().x_0
    gone = {row.tobytes() for row in to_values(rows, run.partition.contents).round().byte().numpy()}
    arrays = dict(np.load(data))
    shape = run.partition.contents.shape
    pictures = arrays["images"].reshape(
        len(arrays["images"]), *(shape if shape[0] == 1 else (*shape[1:], shape[0]))
    )
    channels_first = pictures if shape[0] == 1 else np.moveaxis(pictures, -1, 1)
    kept = np.array([np.ascontiguousarray(one).tobytes() not in gone for one in channels_first])
    file = folder / f"{run.config.name}-rest-{split}.npz"
    left = {name: values[kept] for name, values in arrays.items() if name in ("images", "labels")}
    np.savez(file, **{**arrays, **left})
    return file


def on_public(resolved: RunConfig, begun: Stage) -> RunConfig:
    """The same run from a start that has seen none of its samples."""
    expert = resolved.expert.model_copy(update={"init": str(begun.path.resolve())})
    return resolved.model_copy(update={"start": None, "expert": expert})


def public_start(resolved: RunConfig) -> Stage:
    """The start of a run, and no more of it."""
    run = opened(resolved)
    return graph.of_stage(run, run.start).make()


def costs(run: Run) -> dict[str, float]:
    """Training FLOPs: of all that is trained again without forgetting, and of each way to forget."""
    config = run.config
    forward, router = plan.forward_flops(config, known(run.data.contents))
    start = 0.0 if config.start is None else 3 * config.start.steps * config.start.batch * forward
    each = [config.expert_for(k) for k in range(config.partition.clusters)]
    experts = [3 * one.steps * one.batch * forward for one in each]
    asked = 3 * config.router.steps * config.router.batch * router
    return {
        "FLOPs, all again": start + sum(experts) + asked,
        "FLOPs, all but the start again": sum(experts) + asked,
        "FLOPs, all again, routed in closed form": start + sum(experts),
        "FLOPs, a split dropped, router again": asked,
        "FLOPs, some samples of a split, expert and router again": experts[SPLIT] + asked,
        "FLOPs, some samples of a split, routed in closed form": experts[SPLIT],
    }


def distance(sampler: Sampler, judge: Judge, num: int, seed: int, **settings: Any) -> float:
    """The Fréchet distance on the first features."""
    row, _ = sample_and_judge(sampler, judge, num, {"seed": seed, **settings})
    return float(next(iter(row["features"].values()))["frechet"]["value"])


def forgetting(
    whole: Run, data: Path, resolved: Resolved, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """A split that goes: what is left, against a run that never had it, both judged by the rest."""
    rest = trained(resolved("rest", rest_of(whole, data, SPLIT, runs_folder().resolve())))
    judge = Judge(rest, EvaluateConfig(features=tuple(options.features)))
    others = [k for k in range(whole.config.partition.clusters) if k != SPLIT]
    before = open_run_model(whole)
    facts: dict[str, Any] = {}
    for strategy in STRATEGIES:
        facts[f"the rest, parts of the rest asked, {strategy}"] = distance(
            before, judge, options.num, seed, strategy=strategy, experts=others
        )
    adding.drop(whole, SPLIT)
    try:
        after = open_run_model(whole)
        for strategy in STRATEGIES:
            facts[f"the rest, part dropped, {strategy}"] = distance(
                after, judge, options.num, seed, strategy=strategy
            )
    finally:
        write_members(whole.path, Members())
    for strategy in STRATEGIES:
        facts[f"the rest, trained without the split, {strategy}"] = distance(
            open_run_model(rest), judge, options.num, seed, strategy=strategy
        )
    return facts | costs(whole)


def arriving(
    whole: Run, files: dict[str, Path], resolved: Resolved, options: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """A class that comes later, against a run that had it from the beginning; both judged by all data."""
    less = trained(resolved("less", files["without"]))
    judge = Judge(whole, EvaluateConfig(features=tuple(options.features)))
    facts: dict[str, Any] = {
        "without the class": distance(open_run_model(less), judge, options.num, seed, strategy=STRATEGIES[0])
    }
    part = component(options.recipe, less, files["alone"], [*options.set, f"seed={seed}"])
    before = [less.expert(k).digest for k in range(less.config.partition.clusters)]
    since = time.perf_counter()
    member = adding.add(less, part.path, allow_worse=True)
    facts["seconds to add"] = time.perf_counter() - since
    facts["the gate says"] = None if member.weighed is None else member.weighed.against
    for strategy in STRATEGIES:
        facts[f"class added, {strategy}"] = distance(
            open_run_model(less), judge, options.num, seed, strategy=strategy
        )
    facts["others untouched"] = before == [less.expert(k).digest for k in range(len(before))]
    since = time.perf_counter()
    adding.drop(less, member.number)
    facts["seconds to drop"] = time.perf_counter() - since
    return facts


def averages(whole: Run, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The run itself, and what is naive: one network of all weights, all outputs at every step."""
    judge = Judge(whole, EvaluateConfig(features=tuple(options.features)))
    facts = {
        f"all data, {strategy}": distance(open_run_model(whole), judge, options.num, seed, strategy=strategy)
        for strategy in STRATEGIES
    }
    if not options.averages:
        return facts
    with tempfile.TemporaryDirectory() as folder:
        facts["averaged weights"] = distance(averaged(whole, Path(folder)), judge, options.num, seed)
    facts["averaged outputs"] = distance(
        open_run_model(whole), judge, options.num, seed, strategy="full", temperature=1e6
    )
    return facts


def study(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One seed."""
    folder, data = runs_folder().resolve(), options.data.resolve()

    def settings(name: str, source: Path) -> RunConfig:
        named = [f"name='{name}-{seed}'", f"seed={seed}", f"data.source={json.dumps(str(source))}"]
        return config.load(options.recipe, [*options.set, *named])

    def resolved(name: str, source: Path) -> RunConfig:
        return settings(name, source) if begun is None else on_public(settings(name, source), begun)

    public = options.public
    begun = None if public is None else public_start(settings("public", public.resolve()))
    whole = trained(resolved("whole", data))
    facts: dict[str, Any] = {"seed": seed, **averages(whole, options, seed)}
    if options.leave is not None:
        return facts | arriving(whole, subsets(data, options.leave, folder), resolved, options, seed)
    return facts | forgetting(whole, data, resolved, options, seed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="arrays `images` and `labels` in an .npz")
    parser.add_argument("--leave", type=int, help="the class that comes later; not where classes are told")
    parser.add_argument("--public", type=Path, help="what all starts are trained on, instead of the data")
    parser.add_argument("--averages", action="store_true", help="of weights and outputs, too")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--num", type=int, default=2000, help="samples that each distance stands on")
    parser.add_argument("--features", nargs="+", default=["classifier"])
    parser.add_argument("--set", action="append", default=[], help="a key of the recipe")
    options = parser.parse_args()
    runs_folder().mkdir(parents=True, exist_ok=True)
    seeds = [study(options, seed) for seed in options.seeds]
    numbers = [name for name, value in seeds[0].items() if isinstance(value, float)]
    together = {name: over_repetitions([one[name] for one in seeds]).facts() for name in numbers}
    print(json.dumps({"study": "components", "together": together, "seeds": seeds}, indent=1))


if __name__ == "__main__":
    main()

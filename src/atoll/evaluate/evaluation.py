"""A finished run judged: all that can be asked of it, in one file that says how it was found."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from atoll.config import SampleConfig
from atoll.errors import ConfigError
from atoll.evaluate import matched, routing
from atoll.evaluate.measure import Judge, sample_and_judge
from atoll.runs import EVALUATION, Run, digest, read_stamped, stamped, write_json
from atoll.runs.evaluations import evaluation_file
from atoll.sampling.opening import open_model, open_run_model
from atoll.sampling.request import OPENING

FILE = Path(EVALUATION).name


Report = Callable[[str, int, int], None]
"""Takes what is counted, how many are done, and of how many."""


def evaluate(run: Run, progress: Report | None = None) -> dict[str, Any]:
    """Measure a run as its [evaluate] and [sample] sections say; adds to `evaluation/evaluation.json`."""
    record = with_earlier(run, measure(run, progress))
    write_json(run.path / EVALUATION, stamped(record))
    return record


def measure(run: Run, progress: Report | None = None) -> dict[str, Any]:
    """All numbers of a run, as its [evaluate] and [sample] sections ask for them."""
    config = run.config.evaluate
    sampler = open_run_model(run)
    settings = run.sampled_with.model_dump(exclude={"num", "strategy", "prompts", *OPENING})
    ensemble = sampler.ensemble
    judge = Judge(run, config)
    judge.ready()
    strategies = config.strategies or (run.config.sample.strategy,)
    monolith = None if config.monolith is None else _monolith(Path(config.monolith), judge, settings)
    rows = {}
    for strategy in strategies:
        request = {**settings, "strategy": strategy}
        count = None if progress is None else partial(progress, f"samples of {strategy}")
        rows[strategy], drawn = sample_and_judge(sampler, judge, config.num, request, count)
        if monolith is not None:
            rows[strategy]["monolith"] = matched.alike(drawn.x_0, monolith, config.bootstrap)
    sample = run.sampled_with.model_dump(mode="json")
    rows = {name: {**row, "sample": {**sample, "strategy": row["strategy"]}} for name, row in rows.items()}
    record: dict[str, Any] = {
        "run": run.config.name,
        "num": config.num,
        "data": {"samples": len(judge.real), "source": run.config.data.source},
        "sample": sample,
        "networks": networks(run),
        "strategies": rows,
    }
    if config.routing and len(ensemble.experts) > 1 and ensemble.router is not None:
        if sampler.defaults.extrapolate != 1:  # losses are those of experts as they were trained
            ensemble = open_run_model(run, extrapolate=1.0).ensemble
        examined = routing.examine(
            ensemble, run, config.routing, experts=not ensemble.absent, resamples=config.bootstrap
        )
        predicted = routing.predicts([examined])
        record["routing"] = {
            **examined,
            "entropy_predicts_greedy_loss": None if predicted is None else predicted.facts(),
        }
    return record


def networks(run: Run) -> str:
    """A digest of all networks that may be sampled: what was measured of others does not hold of these."""
    return digest([stage.digest if stage.done else None for stage in run.networks])


def with_earlier(run: Run, record: Mapping[str, Any]) -> dict[str, Any]:
    """What was found now, and under `measured` also what earlier calls found of the same networks."""
    path = evaluation_file(run)
    earlier = read_stamped(path) if path.is_file() else {}
    kept = earlier if earlier.get("networks") == record["networks"] else {}
    measured = {**kept.get("measured", {}), **{setting(row): row for row in record["strategies"].values()}}
    routing = {"routing": kept["routing"]} if "routing" in kept else {}
    return {**routing, **record, "measured": measured}


ALWAYS = ("strategy", "steps", "solver")
NOT_TOLD = frozenset(
    {*ALWAYS, "num", "batch", "prompts", "provenance", "resident", "missing", "band", "compile"}
)
"""Settings of a row that do not change what is measured, or are told in any case."""


def setting(row: Mapping[str, Any]) -> str:
    """How samples were drawn, in words; by this a measurement is known among others of the same run."""
    settings, usual = row["sample"], SampleConfig().model_dump(mode="json")
    words = [row["strategy"], f"{settings['steps']} {settings['solver']} steps"]
    words += [
        f"{key} {_plain(settings[key])}"
        for key in usual
        if key not in NOT_TOLD and key in settings and settings[key] != usual[key]
    ]
    return ", ".join([*words, f"{row['num']:,} samples"])


def _plain(value: Any) -> str:
    return " ".join(_plain(one) for one in value) if isinstance(value, list) else str(value)


def _monolith(folder: Path, judge: Judge, settings: Mapping[str, Any]) -> Tensor:
    """What the monolith makes of the same noise, asked for the same."""
    other = open_model(folder)
    shape = judge.real.contents.shape
    if len(other.ensemble.experts) != 1 or other.ensemble.shape != shape:
        raise ConfigError(f"evaluate.monolith '{folder}' is not a run of one cluster with samples of {shape}")
    conditions = judge.conditions(judge.config.num)
    return other.sample(
        judge.config.num, **conditions, **{**settings, "strategy": "ancestral", "experts": None}
    )


def routing_table(examined: Mapping[str, Any]) -> str:
    """Router and experts by time, for a person."""
    head = ("t", "accuracy", "calibration", "entropy", "own", "others", "full", "top-1", "disagreement")
    lines = ["".join(f"{name:>13}" for name in head)]
    lines += ["".join(f"{row[name]:13.4f}" for name in head) for row in examined["times"]]
    correlation = examined["entropy_predicts_greedy_loss"]
    if correlation is not None:
        low, high = (f"{correlation[end]:.2f}" for end in ("low", "high"))
        words = f"rank correlation {correlation['value']:.2f} ({low} to {high})"
        lines.append(f"entropy and what top-1 loses against full: {words}")
    num = examined["num"]
    lines.append(f"on {num:,} real samples at each time; the 95 % interval of each number is in {FILE}")
    return "\n".join(lines)

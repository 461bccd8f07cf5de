"""A finished run judged: all that can be asked of it, in one file that says how it was found."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from atoll.errors import ConfigError
from atoll.evaluate import matched, routing
from atoll.evaluate.measure import Judge, sample_and_judge
from atoll.runs import Run, write_json
from atoll.sampling.ensemble import Progress
from atoll.sampling.sample import load_ensemble

FILE = "evaluation.json"


def evaluate(run: Run, progress: Progress | None = None) -> dict[str, Any]:
    """Measure a run as its [evaluate] and [sample] sections say; writes `evaluation/evaluation.json`."""
    how = run.config.evaluate
    settings = run.config.sample.model_dump(exclude={"num", "strategy", "prompts"})
    ensemble = load_ensemble(run.path, **settings)
    judge = Judge(run, how)
    judge.ready()
    strategies = how.strategies or (run.config.sample.strategy,)
    monolith = None if how.monolith is None else _monolith(Path(how.monolith), judge, settings)
    rows = {}
    for strategy in strategies:
        asked = {**settings, "strategy": strategy}
        rows[strategy], drawn = sample_and_judge(ensemble, judge, how.num, asked, progress)
        if monolith is not None:
            rows[strategy]["monolith"] = matched.alike(drawn.x_0, monolith, how.bootstrap)
    found = {
        "run": run.config.name,
        "num": how.num,
        "data": {"samples": len(judge.real), "source": run.config.data.source},
        "sample": run.config.sample.model_dump(mode="json"),
        "strategies": rows,
    }
    if how.routing and len(ensemble.experts) > 1 and ensemble.router is not None:
        examined = routing.examine(ensemble, run, how.routing, resamples=how.bootstrap)
        predicted = routing.predicts([examined])
        found["routing"] = {
            **examined,
            "entropy_predicts_greedy_loss": None if predicted is None else predicted.facts(),
        }
    write_json(run.path / "evaluation" / FILE, found)
    return found


def _monolith(folder: Path, judge: Judge, settings: Mapping[str, Any]) -> Tensor:
    """What the monolith makes of the same noise, asked for the same."""
    other = load_ensemble(folder)
    shape = judge.real.contents.shape
    if len(other.experts) != 1 or other.shape != shape:
        raise ConfigError(f"evaluate.monolith '{folder}' is not a run of one cluster with samples of {shape}")
    asked = judge.conditions(judge.how.num)
    return other.sample(judge.how.num, **asked, **{**settings, "strategy": "ancestral", "experts": None})


def routing_table(examined: Mapping[str, Any]) -> str:
    """Router and experts by time, for a person."""
    head = ("t", "accuracy", "calibration", "entropy", "own", "others", "full", "top-1", "disagreement")
    lines = ["".join(f"{name:>13}" for name in head)]
    lines += ["".join(f"{row[name]:13.4f}" for name in head) for row in examined["times"]]
    found = examined["entropy_predicts_greedy_loss"]
    if found is not None:
        low, high = (f"{found[end]:.2f}" for end in ("low", "high"))
        said = f"rank correlation {found['value']:.2f} ({low} to {high})"
        lines.append(f"entropy and what top-1 loses against full: {said}")
    num = examined["num"]
    lines.append(f"on {num:,} real samples at each time; the 95 % interval of each number is in {FILE}")
    return "\n".join(lines)

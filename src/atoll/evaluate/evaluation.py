"""A finished run judged: all that can be asked of it, in one file that says how it was found."""

from typing import Any

from atoll.evaluate.measure import Judge, sample_and_judge
from atoll.models.ensemble import Progress
from atoll.runs import Run, write_json
from atoll.sample import load_ensemble

FILE = "evaluation.json"


def evaluate(run: Run, progress: Progress | None = None) -> dict[str, Any]:
    """Measure a run as its [evaluate] and [sample] sections say; writes `evaluation/evaluation.json`."""
    how = run.config.evaluate
    settings = run.config.sample.model_dump(exclude={"num", "strategy", "prompts"})
    ensemble = load_ensemble(run.path, **settings)
    judge = Judge(run, how)
    judge.ready()
    strategies = how.strategies or (run.config.sample.strategy,)
    rows = {}
    for strategy in strategies:
        asked = {**settings, "strategy": strategy}
        rows[strategy], _ = sample_and_judge(ensemble, judge, how.num, asked, progress)
    found = {
        "run": run.config.name,
        "num": how.num,
        "data": {"samples": len(judge.real), "source": run.config.data.source},
        "sample": run.config.sample.model_dump(mode="json"),
        "strategies": rows,
    }
    write_json(run.path / "evaluation" / FILE, found)
    return found

"""The measurements of a run as one of its stages."""

from typing import Any

from atoll.evaluate import evaluation
from atoll.evaluate.evaluation import FILE, Report
from atoll.runs import Run, Stage, evaluations, graph, stamped, write_json
from atoll.runs.evaluations import EvaluationContents

TIMES = ("seconds",)
"""What two machines that measure the same have not in common."""


def measure(run: Run, *, progress: Report | None = None) -> Stage:
    """Measure what the recipe asks for into `measured/`."""
    node = graph.of_stage(run, evaluations.measured(run))
    stage, made_from = node.stage, node.made_from()
    if stage.begin(made_from):
        write_json(stage.path / FILE, stamped(timeless(evaluation.measure(run, progress))))
        stage.finish(made_from, [FILE], EvaluationContents(evaluation=FILE))
    return stage


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """The same without how long it took, and also by how samples were drawn, as those who read it look."""
    rows = {
        name: {key: value for key, value in row.items() if key not in TIMES}
        for name, row in record["strategies"].items()
    }
    return {
        **record,
        "strategies": rows,
        "measured": {evaluation.setting(row): row for row in rows.values()},
    }

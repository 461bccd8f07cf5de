"""What networks lose on samples that nobody trained on, as a table of the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from atoll.runs import Run, Stage, read_lines


def table(run: Run) -> dict[str, Any] | None:
    """The last held-out loss of every job that measured one, with its training loss and by time."""
    rows = [(name, _last(read_lines(stage.path / "metrics.jsonl"))) for name, stage in _jobs(run)]
    known = [(name, line) for name, line in rows if line]
    if not known:
        return None
    starts = sorted(
        {key.removeprefix("holdout_t") for _, line in known for key in line if "holdout_t" in key}
    )
    body = [
        [name, *(_number(line.get(key)) for key in ("loss", "holdout", *_keys(starts)))]
        for name, line in known
    ]
    head = ["job", "trained on", "held out", *(f"held out, t from {float(start):g}" for start in starts)]
    return {"rows": run.partition.contents.holdout, "head": head, "body": body}


def _keys(starts: Sequence[str]) -> list[str]:
    return [f"holdout_t{start}" for start in starts]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _last(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The newest line with a held-out loss."""
    return next((line for line in reversed(lines) if "holdout" in line), {})


def _jobs(run: Run) -> list[tuple[str, Stage]]:
    experts = [(f"expert {index}", run.expert(index)) for index in range(run.config.partition.clusters)]
    others = [("router", run.router), ("start", run.start), ("shared", run.shared), ("student", run.student)]
    return [*experts, *others]

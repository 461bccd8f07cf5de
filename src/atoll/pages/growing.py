"""How samples of the same seeds grew while networks learnt: the previews of all jobs, for the report."""

from typing import Any

from atoll.pages.pictures import embedded
from atoll.runs import Run, previews

MOST = 6
"""Previews of one job on the page, from the first to the last."""


def rows(run: Run) -> list[dict[str, Any]]:
    """For every job that left previews, some of them in order, with their steps."""
    stages = [(f"expert {index}", run.expert(index)) for index in range(run.config.partition.clusters)]
    stages += [("start", run.start), ("student", run.student)]
    shown = [(name, _some(previews.listed(stage.path))) for name, stage in stages]
    return [
        {"name": name, "pictures": [{"step": step, "picture": embedded(path)} for step, path in some]}
        for name, some in shown
        if some
    ]


def _some(items: list[Any]) -> list[Any]:
    """At most `MOST` of them, evenly spread, the first and the last among them."""
    if len(items) <= MOST:
        return items
    return [items[round(index * (len(items) - 1) / (MOST - 1))] for index in range(MOST)]

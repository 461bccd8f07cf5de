"""What `atoll evaluate` found, as tables of a page: every number beside the setting it was measured at."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atoll.config import Facts, SampleConfig
from atoll.plan import strategy_costs
from atoll.runs import Run
from atoll.runs.evaluations import Measurement, Number, Routing
from atoll.runs.known import known

Rows = Mapping[str, Measurement]
"""What was measured, by setting."""


def distance_name(rows: Rows) -> str | None:
    """What the first distance is called."""
    return next((row.first_space.distance for row in rows.values()), None)


def strategies(run: Run, rows: Rows, used: str) -> list[dict[str, Any]]:
    """What strategies cost; a distance stands beside the cost of the setting at which it was measured."""
    facts = known(run.partition.contents)
    sample = run.sampled_with
    costs = strategy_costs(run.config.model_copy(update={"sample": sample}), facts)
    base = costs["ancestral"]["flops"]
    measured = [_measured_cost(run, facts, row, base) for row in rows.values()]
    here = _drawn_by(sample)
    measured_here = {row.strategy for row in rows.values() if _drawn_by(row.sample) == here}
    others = [
        {**_cost(name, cost, sample, base), "distance": "", "used": False}
        for name, cost in costs.items()
        if name not in measured_here
    ]
    table = measured + others
    for row in table:
        row["used"] = len(costs) > 1 and row["name"] == used and row["drawn"] == _steps(sample)
    return table


def _drawn_by(sample: SampleConfig) -> tuple[Any, ...]:
    """What of the settings decides what a sample costs, but for the strategy."""
    return sample.model, sample.steps, sample.solver, sample.guidance, sample.guided, sample.extrapolate


def _measured_cost(run: Run, facts: Facts, row: Measurement, base: float) -> dict[str, Any]:
    sample, distance = row.sample, row.first_space.frechet
    config = run.config.model_copy(update={"sample": sample})
    measured = {"distance": _short(distance.value), "interval": _interval(distance)}
    if sample.model != "ensemble":  # one network, whose size is not that of the experts
        return {
            "name": sample.model,
            "drawn": _steps(sample),
            "once": "",
            "whole": "",
            "times": "",
            **measured,
        }
    cost = next(iter(strategy_costs(config, facts, (row.strategy,)).values()))
    return {**_cost(row.strategy, cost, sample, base), **measured}


def _cost(name: str, cost: Mapping[str, float], sample: SampleConfig, base: float) -> dict[str, Any]:
    return {
        "name": name,
        "drawn": _steps(sample),
        "once": f"{cost['flops']:.3g}",
        "whole": f"{cost['flops_per_sample']:.3g}",
        "times": f"{cost['flops'] / base:.2f}",
    }


def _steps(sample: SampleConfig) -> str:
    guided = f", guidance {sample.guidance:g}" if sample.guidance > 1 else ""
    farther = f", extrapolated by {sample.extrapolate:g}" if sample.extrapolate != 1 else ""
    return f"{sample.steps} {sample.solver} steps{guided}{farther}"


MEASURED = {"kernel": "kernel distance", "precision": "precision", "recall": "recall"}
ALSO = {
    "as_asked": "of the class that was asked for",
    "disagreement": "disagreement of active experts",
    "switches": "changes of expert on the way",
    "diversity": "LPIPS within a prompt",
    "clip_score": "CLIP score",
}


def numbers(rows: Rows) -> dict[str, Any] | None:
    """The table of what was measured: a row for each number, a column for each setting, and the floor."""
    table: dict[str, dict[str, Any]] = {}
    for column, measurement in enumerate(rows.values()):
        for what, number, floor in _numbers_of(measurement):
            row = table.setdefault(what, {"what": what, "floor": _short(floor), "cells": [None] * len(rows)})
            row["cells"][column] = {"value": _short(number.value), "interval": _interval(number)}
        for what, text in _facts_of(measurement):
            row = table.setdefault(what, {"what": what, "floor": "", "cells": [None] * len(rows)})
            row["cells"][column] = {"value": text, "interval": ""}
    return {"settings": list(rows), "rows": list(table.values())} if table else None


def _numbers_of(measurement: Measurement) -> Iterator[tuple[str, Number, float | None]]:
    """Every number of a setting with its floor."""
    for space in measurement.features.values():
        for key, what in {"frechet": space.distance, **MEASURED}.items():
            yield what, getattr(space, key), space.floor[key]
    for key, groups in (("clusters", measurement.clusters), ("classes", measurement.classes)):
        if groups is not None:
            yield f"divergence of {key} (bits)", groups.divergence, groups.floor
    yield "share of training samples copied", measurement.copies, measurement.copies.floor
    for key, what in ALSO.items():
        number: Number | None = getattr(measurement, key)
        if number is not None:
            floor = measurement.diversity_of_data if key == "diversity" else None
            yield what, number, floor.value if floor else None
    if measurement.monolith is not None:
        alike = measurement.monolith
        yield "likeness to the monolith", alike.matched, alike.strangers.value


def _facts_of(measurement: Measurement) -> Iterator[tuple[str, str]]:
    """What has no interval."""
    if measurement.experts_per_step is not None:
        yield "experts asked a step", f"{measurement.experts_per_step:.3g}"
    if len(measurement.makers) > 1:
        yield "samples by expert", " · ".join(f"{number:,}" for number in measurement.makers)
    if measurement.seconds:
        rate = measurement.num / max(measurement.seconds["sample"], 1e-9)
        yield "samples drawn a second, there", _short(rate)


def shares(rows: Rows, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Of clusters and of classes: the share of each among the data, and among the samples of each setting."""
    tables = []
    for key, title in (("clusters", "cluster"), ("classes", "class")):
        groups = {column: getattr(row, key) for column, row in rows.items()}
        having = {column: each for column, each in groups.items() if each is not None and each.samples}
        if not having:
            continue
        data: Sequence[float] = next(iter(having.values())).data
        names = class_names if key == "classes" else [str(index) for index in range(len(data))]
        body = [
            [name, _percent(data[index]), *(_percent(row.samples[index]) for row in having.values())]
            for index, name in enumerate(names[: len(data)])
        ]
        tables.append({"head": (title, "data", *having), "body": body})
    return tables


BY_TIME = ("accuracy", "calibration", "entropy", "own", "others", "full", "top-1", "disagreement")


def by_time(routing: Routing | None) -> dict[str, Any] | None:
    """Router and experts by time as they were measured, each number with half its interval."""
    if routing is None:
        return None
    body = [[f"{row['t']:.2f}", *(_with_half(row, name) for name in BY_TIME)] for row in routing.times]
    return {
        "head": ("t", *BY_TIME),
        "body": body,
        "num": routing.num,
        "foretold": _foretold(routing.entropy_predicts_greedy_loss),
    }


def _foretold(correlation: Number | None) -> str:
    if correlation is None:
        return ""
    return (
        "Rank correlation of the router's entropy with what top-1 loses against the whole mixture: "
        f"{correlation.value:.2f} ({correlation.low:.2f} to {correlation.high:.2f})."
    )


def _with_half(row: Mapping[str, Any], name: str) -> str:
    between = row.get("intervals", {}).get(name)
    half = "" if between is None else f" ± {(between[1] - between[0]) / 2:.3f}"
    return f"{row[name]:.3f}{half}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _interval(number: Number) -> str:
    return "" if number.low is None else f"{_short(number.low)} to {_short(number.high)}"

"""What `atoll evaluate` found, as tables of a page: every number beside the setting it was measured at."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atoll.config import SampleConfig
from atoll.evaluate.evaluation import setting
from atoll.plan import strategy_costs
from atoll.runs import EVALUATION, Run, read_stamped

Rows = Mapping[str, Mapping[str, Any]]
"""What was measured, by setting."""


def evaluation(run: Run) -> dict[str, Any]:
    """All that was found; nothing where nobody looked."""
    path = run.path / EVALUATION
    return read_stamped(path) if path.is_file() else {}


def rows_of(evaluation: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every measurement by its setting; an old file has those of its last call alone."""
    if "measured" in evaluation:
        return dict(evaluation["measured"])
    rows = evaluation.get("strategies", {}).values()
    usual = {"sample": evaluation.get("sample", SampleConfig().model_dump(mode="json"))}
    records = [{**usual, "num": evaluation.get("num", row["copies"]["num"]), **row} for row in rows]
    return {setting(row): row for row in records}


def distance_name(rows: Rows) -> str | None:
    """What the first distance is called."""
    return next((_first_space(row)["distance"] for row in rows.values()), None)


def strategies(run: Run, rows: Rows, used: str) -> list[dict[str, Any]]:
    """What strategies cost; a distance stands beside the cost of the setting at which it was measured."""
    contents = run.partition.contents.facts()
    costs = strategy_costs(run.config, contents)
    base = costs["ancestral"]["flops"]
    measured = [_measured_cost(run, contents, row, base) for row in rows.values()]
    here = _drawn_by(run.config.sample.model_dump(mode="json"))
    known = {row["strategy"] for row in rows.values() if _drawn_by(row["sample"]) == here}
    others = [
        {**_cost(name, cost, run.config.sample, base), "distance": "", "used": False}
        for name, cost in costs.items()
        if name not in known
    ]
    table = measured + others
    for row in table:
        row["used"] = len(costs) > 1 and row["name"] == used and row["drawn"] == _steps(run.config.sample)
    return table


def _drawn_by(sample: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of the settings decides what a sample costs, but for the strategy."""
    return tuple(str(sample[key]) for key in ("model", "steps", "solver", "guidance", "guided"))


def _measured_cost(
    run: Run, contents: Mapping[str, Any], row: Mapping[str, Any], base: float
) -> dict[str, Any]:
    sample = SampleConfig.model_validate(row["sample"])
    config = run.config.model_copy(update={"sample": sample})
    distance = _first_space(row)["frechet"]
    measured = {"distance": _short(distance["value"]), "interval": _interval(distance)}
    if sample.model != "ensemble":  # one network, whose size is not that of the experts
        return {
            "name": sample.model,
            "drawn": _steps(sample),
            "once": "",
            "whole": "",
            "times": "",
            **measured,
        }
    name = row["strategy"]
    cost = next(iter(strategy_costs(config, contents, (name,)).values()))
    return {**_cost(name, cost, sample, base), **measured}


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
    return f"{sample.steps} {sample.solver} steps{guided}"


def _first_space(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(row["features"].values()))


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
            row["cells"][column] = {"value": _short(number["value"]), "interval": _interval(number)}
        for what, text in _facts_of(measurement):
            row = table.setdefault(what, {"what": what, "floor": "", "cells": [None] * len(rows)})
            row["cells"][column] = {"value": text, "interval": ""}
    return {"settings": list(rows), "rows": list(table.values())} if table else None


def _numbers_of(measurement: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], float | None]]:
    """Every number of a setting with its floor."""
    for space in measurement["features"].values():
        for key, what in {"frechet": space["distance"], **MEASURED}.items():
            yield what, space[key], space["floor"][key]
    for key in ("clusters", "classes"):
        if key in measurement:
            yield f"divergence of {key} (bits)", measurement[key]["divergence"], measurement[key].get("floor")
    yield "share of training samples copied", measurement["copies"], measurement["copies"]["floor"]
    for key, what in ALSO.items():
        if measurement.get(key) is not None:
            floor = measurement.get("diversity_of_data") if key == "diversity" else None
            yield what, measurement[key], floor["value"] if floor else None
    if "monolith" in measurement:
        alike = measurement["monolith"]
        yield "likeness to the monolith", alike["matched"], alike["strangers"]["value"]


def _facts_of(measurement: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What has no interval."""
    if "experts_per_step" in measurement:
        yield "experts asked a step", f"{measurement['experts_per_step']:.3g}"
    if "makers" in measurement and len(measurement["makers"]) > 1:
        yield "samples by expert", " · ".join(f"{number:,}" for number in measurement["makers"])
    if "seconds" in measurement:
        rate = measurement["num"] / max(measurement["seconds"]["sample"], 1e-9)
        yield "samples drawn a second, there", _short(rate)


def shares(rows: Rows, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Of clusters and of classes: the share of each among the data, and among the samples of each setting."""
    tables = []
    for key, title in (("clusters", "cluster"), ("classes", "class")):
        having = {column: row[key] for column, row in rows.items() if key in row and "samples" in row[key]}
        if not having:
            continue
        data: list[float] = next(iter(having.values()))["data"]
        names = class_names if key == "classes" else [str(index) for index in range(len(data))]
        body = [
            [name, _percent(data[index]), *(_percent(row["samples"][index]) for row in having.values())]
            for index, name in enumerate(names[: len(data)])
        ]
        tables.append({"head": (title, "data", *having), "body": body})
    return tables


BY_TIME = ("accuracy", "calibration", "entropy", "own", "others", "full", "top-1", "disagreement")


def by_time(evaluation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Router and experts by time as they were measured, each number with half its interval."""
    routing = evaluation.get("routing")
    if routing is None:
        return None
    body = [[f"{row['t']:.2f}", *(_with_half(row, name) for name in BY_TIME)] for row in routing["times"]]
    return {
        "head": ("t", *BY_TIME),
        "body": body,
        "num": routing["num"],
        "foretold": _foretold(routing.get("entropy_predicts_greedy_loss")),
    }


def _foretold(correlation: Mapping[str, Any] | None) -> str:
    if correlation is None:
        return ""
    return (
        "Rank correlation of the router's entropy with what top-1 loses against the whole mixture: "
        f"{correlation['value']:.2f} ({correlation['low']:.2f} to {correlation['high']:.2f})."
    )


def _with_half(row: Mapping[str, Any], name: str) -> str:
    between = row.get("intervals", {}).get(name)
    half = "" if between is None else f" ± {(between[1] - between[0]) / 2:.3f}"
    return f"{row[name]:.3f}{half}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _interval(number: Mapping[str, Any]) -> str:
    return "" if number["low"] is None else f"{_short(number['low'])} to {_short(number['high'])}"

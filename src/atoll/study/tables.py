"""The numbers of a study for people and programs: Markdown, CSV and JSON, with the monolith beside each."""

import csv
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from atoll.evaluate.intervals import over_repetitions
from atoll.evaluate.routing import predicts
from atoll.study.design import BUDGET, CLUSTERS, SEED

Row = Mapping[str, Any]


def distance_of(row: Row) -> float:
    """The Fréchet distance on the first features of a cell."""
    return float(next(iter(row["features"].values()))["frechet"]["value"])


def floor_of(row: Row) -> float:
    """The same distance of real samples."""
    return float(next(iter(row["features"].values()))["floor"]["frechet"])


def groups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Cells that differ by their seed only as one line each: means, intervals, and against the monolith."""
    monoliths = {row["beside"]: row for row in rows if row["monolith"]}
    repeated: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: not row["monolith"]):
        repeated.setdefault(row["group"], []).append(row)
    found = []
    for cells in repeated.values():
        change = [
            distance_of(cell) / distance_of(monoliths[cell["beside"]]) - 1
            for cell in cells
            if cell["beside"] in monoliths
        ]
        first = cells[0]
        found.append(
            {
                "values": {key: value for key, value in first["values"].items() if key != SEED},
                "monolith": first["monolith"],
                "strategy": first["strategy"],
                "seeds": len(cells),
                "num": first["num"],
                "training_flops": first["training_flops"],
                "flops_per_sample": over_repetitions([c["flops_per_sample"] for c in cells]).value,
                "distance": over_repetitions([distance_of(cell) for cell in cells]).facts(),
                "floor": over_repetitions([floor_of(cell) for cell in cells]).value,
                "change": over_repetitions(change).facts() if change else None,
                **{
                    name: over_repetitions([_space(cell)[name]["value"] for cell in cells]).facts()
                    for name in ("kernel", "precision", "recall")
                },
                "classes": _mean_of(cells, "classes"),
                "clusters": _mean_of(cells, "clusters"),
                "copies": over_repetitions([cell["copies"]["value"] for cell in cells]).value,
            }
        )
    return found


def _space(row: Row) -> Mapping[str, Any]:
    return next(iter(row["features"].values()))


def _mean_of(cells: Sequence[Row], key: str) -> float | None:
    """The mean divergence from the data's shares of clusters or classes."""
    known = [cell[key]["divergence"]["value"] for cell in cells if key in cell]
    return over_repetitions(known).value if known else None


def varying(lines: Sequence[Row]) -> list[str]:
    """The axes along which the lines differ."""
    keys = {key: None for line in lines for key in line["values"]}
    return [key for key in keys if key != SEED and len({str(line["values"].get(key)) for line in lines}) > 1]


def heading(key: str) -> str:
    """The name of an axis in a table."""
    return {CLUSTERS: "clusters", BUDGET: "budget (samples)"}.get(key, key.rsplit(".", 1)[-1])


class Table(NamedTuple):
    """A table of words and numbers, whatever it is written in."""

    head: list[str]
    body: list[list[str]]
    note: str


def of_lines(lines: Sequence[Row], distance: str) -> Table:
    """The table of a study; its first columns, as many as axes and two, are words."""
    keys = word_columns(lines)
    head = ["", *map(heading, keys), "strategy", "training FLOPs", "FLOPs per sample", distance]
    head += ["against the monolith", "precision", "recall", "divergence of classes", "copies"]
    body = []
    for line in lines:
        cells = ["monolith" if line["monolith"] else "experts"]
        cells += [said(line["values"].get(key)) for key in keys]
        cells += ["" if line["monolith"] else line["strategy"]]
        cells += [f"{line['training_flops']:.3g}", f"{line['flops_per_sample']:.3g}"]
        cells += [spread(line["distance"]), "" if line["monolith"] else percent(line["change"])]
        cells += [f"{line[key]['value']:.3f}" for key in ("precision", "recall")]
        cells += ["" if line["classes"] is None else f"{line['classes']:.4f}", f"{line['copies']:.2%}"]
        body.append(cells)
    seeds, num = max(line["seeds"] for line in lines), lines[0]["num"]
    floor = sum(line["floor"] for line in lines) / len(lines)
    interval = "with the 95 % interval of Student's t" if seeds > 1 else "without an interval"
    note = (
        f"Mean over {seeds} seed{'s' if seeds > 1 else ''}, {interval}; {num:,} samples a cell. The floor, "
        f"which two halves of the data give at as many samples, is {floor:.3g}. Training FLOPs count the "
        "router's; each ensemble is compared with the monolith of the same seed and budget."
    )
    return Table(head, body, note)


def word_columns(lines: Sequence[Row]) -> list[str]:
    """The axes that have a column."""
    return [key for key in varying(lines) if key != "sample.strategy"]


def markdown(name: str, question: str, lines: Sequence[Row], distance: str, examined: Sequence[Row]) -> str:
    """All tables of a study."""
    if not lines:
        return f"# {name}\n\n{question}\n\nNo cell is finished yet.\n"
    table = of_lines(lines, distance)
    parts = [f"# {name}", question, _written(table), table.note, "\n".join(f"- {s}" for s in reached(lines))]
    if examined:
        times = by_time(examined)
        parts += ["## By time", _written(times), times.note]
    return "\n\n".join(part for part in parts if part) + "\n"


def _written(table: Table) -> str:
    rows = ["| " + " | ".join(row) + " |" for row in (table.head, *table.body)]
    return "\n".join([rows[0], "|---" * len(table.head) + "|", *rows[1:]])


def spread(number: Mapping[str, Any] | None) -> str:
    """A number with its interval."""
    if number is None:
        return ""
    if number["low"] is None:
        return f"{number['value']:.2f}"
    return f"{number['value']:.2f} ± {number['high'] - number['value']:.2f}"


def percent(number: Mapping[str, Any] | None) -> str:
    """A change with its interval."""
    if number is None:
        return ""
    half = "" if number["low"] is None else f" ± {100 * (number['high'] - number['value']):.0f}"
    return f"{100 * number['value']:+.0f}{half} %"


def said(value: Any) -> str:
    """A value of an axis."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def to_reach(goal: float, spent: Sequence[float], distances: Sequence[float]) -> float:
    """What must be spent for a distance, between two points by a line in the logarithms; inf for never."""
    if distances[0] <= goal:
        return spent[0]
    for (a, x), (b, y) in itertools.pairwise(zip(spent, distances, strict=True)):
        if y <= goal:
            share = (math.log(x) - math.log(goal)) / (math.log(x) - math.log(y))
            return math.exp(math.log(a) + share * (math.log(b) - math.log(a)))
    return math.inf


def reached(lines: Sequence[Row]) -> list[str]:
    """With how much of the compute each kind of ensemble reaches the last monolith's distance."""
    budgets = sorted({line["values"][BUDGET] for line in lines})
    if len(budgets) < 2:
        return []
    found = []
    for key, kind in _kinds(lines).items():
        last = [line for line in lines if line["monolith"] and line["values"][BUDGET] == budgets[-1]]
        last = [line for line in last if _shared(line) <= set(key)] or last
        if not last or len(kind) < 2:
            continue
        goal, whole = last[0]["distance"]["value"], last[0]["training_flops"]
        spent = to_reach(
            goal, [line["training_flops"] for line in kind], [line["distance"]["value"] for line in kind]
        )
        name = ", ".join(f"{heading(k)} {v}" for k, v in key) or "experts"
        share = "never" if math.isinf(spent) else f"with {spent / whole:.2f} of the compute"
        at_most = " or less" if spent == kind[0]["training_flops"] else ""
        found.append(f"{name}: the monolith's final distance of {goal:.2f} is reached {share}{at_most}.")
    return found


def _kinds(lines: Sequence[Row]) -> dict[tuple[tuple[str, str], ...], list[Row]]:
    """Ensembles that differ by their budget only, by budget."""
    kinds: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for line in sorted(lines, key=lambda line: line["values"][BUDGET]):
        if not line["monolith"]:
            key = tuple((k, str(v)) for k, v in line["values"].items() if k != BUDGET)
            kinds.setdefault(key, []).append(line)
    return kinds


def _shared(line: Row) -> set[tuple[str, str]]:
    return {(k, str(v)) for k, v in line["values"].items() if k not in (BUDGET, CLUSTERS)}


def comma_separated(rows: Sequence[Row]) -> str:
    """One line for every cell."""
    text = io.StringIO()
    keys = list(dict.fromkeys(key for row in rows for key in row["values"]))
    numbers = ["frechet", "kernel", "precision", "recall"]
    names = [f"{name}{end}" for name in numbers for end in ("", " low", " high")]
    head = ["monolith", *keys, "strategy", "num", "training_flops", "flops_per_sample", "features", *names]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, "floor", "classes", "clusters", "copies", "cell", "training"])
    for row in rows:
        for features, space in row["features"].items():
            values = [said_plainly(row["values"].get(key)) for key in keys]
            found = [space[name][end] for name in numbers for end in ("value", "low", "high")]
            groups = [
                row[key]["divergence"]["value"] if key in row else "" for key in ("classes", "clusters")
            ]
            costs = [row["training_flops"], row["flops_per_sample"]]
            ends = [space["floor"]["frechet"], *groups, row["copies"]["value"], row["cell"], row["training"]]
            writer.writerow(
                [row["monolith"], *values, row["strategy"], row["num"], *costs, features, *found, *ends]
            )
    return text.getvalue()


def said_plainly(value: Any) -> Any:
    """A value of an axis for programs."""
    return value if isinstance(value, (int, float, str)) or value is None else json.dumps(value)


def by_time(examined: Sequence[Row]) -> Table:
    """Entropy, accuracy and what top-1 loses, by time; and whether the one predicts the other."""
    keys = [key for key in varying(examined) if key != SEED]
    columns = ("accuracy", "calibration", "entropy", "own", "others", "full", "top-1", "greedy")
    body = [
        [*(said(each["values"].get(key)) for key in keys), f"{row['t']:.2f}"]
        + [f"{row[name]:.4f}" for name in columns]
        for each in examined
        for row in each["times"]
    ]
    found = predicts(examined)
    sentence = "" if found is None else f" Rank correlation of entropy and greedy over all rows: {found:.2f}."
    note = (
        "Router and experts on real samples at each time: accuracy, calibration error and entropy (as a "
        "share of its maximum) of the router; velocity loss of the samples' own expert, of the others, of "
        f"the whole mixture and of top-1; greedy is what top-1 loses against the whole mixture.{sentence}"
    )
    return Table([*map(heading, keys), "t", *columns], body, note)


def headline(lines: Sequence[Row]) -> dict[str, Any] | None:
    """The ensemble that is best against its monolith."""
    known = [line for line in lines if not line["monolith"] and line["change"] is not None]
    if not known:
        return None
    best = min(known, key=lambda line: line["change"]["value"])
    return {"values": best["values"], "strategy": best["strategy"], "change": best["change"]}

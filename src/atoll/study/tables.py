"""The numbers of a study for people and programs: Markdown, CSV and JSON, with the monolith beside each."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from atoll.evaluate.intervals import Measured, over_repetitions, ratio
from atoll.study.axes import BUDGET, CLUSTERS, SEED

Row = Mapping[str, Any]


def distance_of(row: Row) -> float:
    """The Fréchet distance on the first features of a cell."""
    return float(next(iter(row["features"].values()))["frechet"]["value"])


def floor_of(row: Row) -> float:
    """The same distance of real samples."""
    return float(next(iter(row["features"].values()))["floor"]["frechet"])


def groups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Cells that differ by their seed only as one line each: means, intervals, and against the monolith.

    Intervals are those of repetition; a single seed has the bootstrap interval of its cell, which knows
    nothing of other trainings.
    """
    monoliths = Monoliths([row for row in rows if row["monolith"]])
    repeated: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: not row["monolith"]):
        repeated.setdefault(row["group"], []).append(row)
    return [_line(cells, monoliths) for cells in repeated.values()]


class Monoliths:
    """The monolith of each cell, as it is sampled there, and as it is sampled best."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._beside = {row["beside"]: row for row in rows}
        self._ways: dict[str, dict[str, Row]] = {}
        for row in rows:
            self._ways.setdefault(row["training"], {})[row["group"]] = row

    def pairs(self, cells: Sequence[Row]) -> list[tuple[Row, Row]]:
        """Cells with their monolith, in the same way of sampling."""
        return [(cell, self._beside[cell["beside"]]) for cell in cells if cell["beside"] in self._beside]

    def best(self, cells: Sequence[Row]) -> list[tuple[Row, Row]]:
        """The same networks of the monolith, in the way of sampling that brings them nearest on the mean."""
        pairs = self.pairs(cells)
        each = [self._ways[monolith["training"]] for _, monolith in pairs]
        common = [way for way in each[0] if all(way in ways for ways in each)] if each else []
        if not common:
            return pairs
        nearest = min(common, key=lambda way: sum(distance_of(ways[way]) for ways in each))
        return [(cell, ways[nearest]) for (cell, _), ways in zip(pairs, each, strict=True)]


def _line(cells: Sequence[Row], monoliths: Monoliths) -> dict[str, Any]:
    first = cells[0]
    return {
        "values": {key: value for key, value in first["values"].items() if key != SEED},
        "monolith": first["monolith"],
        "strategy": first["strategy"],
        "seeds": len(cells),
        "cells": [cell["cell"] for cell in cells],
        "num": first["num"],
        "training_flops": first["training_flops"],
        "flops_per_sample": over_repetitions([c["flops_per_sample"] for c in cells]).value,
        "distance": _together([_space(cell)["frechet"] for cell in cells]),
        "each": [distance_of(cell) for cell in cells],
        "floor": over_repetitions([floor_of(cell) for cell in cells]).value,
        "change": _change(monoliths.pairs(cells)),
        "at_best": _change(monoliths.best(cells)),
        **{
            name: _together([_space(cell)[name] for cell in cells])
            for name in ("kernel", "precision", "recall")
        },
        "classes": _mean_of(cells, "classes"),
        "clusters": _mean_of(cells, "clusters"),
        "copies": over_repetitions([cell["copies"]["value"] for cell in cells]).value,
    }


def _together(measurements: Sequence[Row]) -> dict[str, Any]:
    """The mean over seeds; of one seed the number as it was measured."""
    return (
        dict(measurements[0])
        if len(measurements) == 1
        else over_repetitions([each["value"] for each in measurements]).facts()
    )


def _change(pairs: Sequence[tuple[Row, Row]]) -> dict[str, Any] | None:
    """What a distance is above the monolith's, as a share of it, seed by seed."""
    if not pairs:
        return None
    ratios = [ratio(_space(cell)["frechet"], _space(monolith)["frechet"]) for cell, monolith in pairs]
    measured = ratios[0] if len(ratios) == 1 else over_repetitions([each.value for each in ratios])
    return Measured(measured.value - 1, measured.low - 1, measured.high - 1, measured.num).facts()


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
    keys, several = word_columns(lines), any(line["at_best"] != line["change"] for line in lines)
    head = ["", *map(heading, keys), "strategy", "training FLOPs", "FLOPs per sample", distance]
    head += [
        "against the monolith",
        *(["against it at its best"] if several else []),
        "kernel distance",
        "precision",
        "recall",
        "divergence of classes",
        "copies",
    ]
    body = []
    for line in lines:
        cells = ["monolith" if line["monolith"] else "experts"]
        cells += [said(line["values"].get(key)) for key in keys]
        cells += ["" if line["monolith"] else line["strategy"]]
        cells += [f"{line['training_flops']:.3g}", f"{line['flops_per_sample']:.3g}"]
        changes = [line["change"], *([line["at_best"]] if several else [])]
        cells += [spread(line["distance"]), *("" if line["monolith"] else percent(each) for each in changes)]
        cells += [significant(line["kernel"]), *(spread(line[key], 3) for key in ("precision", "recall"))]
        cells += ["" if line["classes"] is None else f"{line['classes']:.4f}", f"{line['copies']:.2%}"]
        body.append(cells)
    counts = sorted({line["seeds"] for line in lines})
    seeds, num = counts[-1], lines[0]["num"]
    floor = sum(line["floor"] for line in lines) / len(lines)
    if seeds > 1:
        many = " to ".join(map(str, dict.fromkeys((counts[0], seeds))))
        interval = f"Mean over {many} seeds with the 95 % interval of Student's t"
        interval += "" if counts[0] > 1 else ", and the bootstrap's where there is one seed yet"
    else:
        interval = "One seed, with the 95 % bootstrap interval, which knows nothing of other seeds"
    note = (
        f"{interval}; {num:,} samples a cell. The floor, "
        f"which two halves of the data give at as many samples, is {floor:.3g}: what few samples add to a "
        "Fréchet distance, and nothing to a kernel distance. Training FLOPs count the router's; each "
        "ensemble is compared with the monolith of the same seed and budget"
        + (", and with it as it is sampled best." if several else ".")
    )
    return Table(head, body, note)


def word_columns(lines: Sequence[Row]) -> list[str]:
    """The axes that have a column."""
    return [key for key in varying(lines) if key != "sample.strategy"]


def written(table: Table) -> str:
    """In Markdown."""
    rows = ["| " + " | ".join(row) + " |" for row in (table.head, *table.body)]
    return "\n".join([rows[0], "|---" * len(table.head) + "|", *rows[1:]])


def spread(number: Mapping[str, Any] | None, digits: int = 2) -> str:
    """A number with its interval."""
    if number is None:
        return ""
    value = f"{number['value']:.{digits}f}"
    return value if number["low"] is None else f"{value} ± {number['high'] - number['value']:.{digits}f}"


def significant(number: Mapping[str, Any]) -> str:
    """A number of any size with its interval."""
    value = f"{number['value']:.3g}"
    return value if number["low"] is None else f"{value} ± {number['high'] - number['value']:.2g}"


def percent(number: Mapping[str, Any] | None) -> str:
    """A change with its interval."""
    if number is None:
        return ""
    half = "" if number["low"] is None else f" ± {100 * (number['high'] - number['value']):.0f}"
    return f"{100 * number['value']:+.0f}{half} %"


def said(value: Any) -> str:
    """A value of an axis; lists and tables without their brackets."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, dict)):
        return re.sub(r"[\[\]{}\"]", "", json.dumps(value)) or "none"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


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
            measured = [space[name][end] for name in numbers for end in ("value", "low", "high")]
            groups = [
                row[key]["divergence"]["value"] if key in row else "" for key in ("classes", "clusters")
            ]
            costs = [row["training_flops"], row["flops_per_sample"]]
            ends = [space["floor"]["frechet"], *groups, row["copies"]["value"], row["cell"], row["training"]]
            writer.writerow(
                [row["monolith"], *values, row["strategy"], row["num"], *costs, features, *measured, *ends]
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
    note = (
        "Router and experts on real samples at each time: accuracy, calibration error and entropy (as a "
        "share of its maximum) of the router; velocity loss of the samples' own expert, of the others, of "
        "the whole mixture and of top-1; greedy is what top-1 loses against the whole mixture."
    )
    return Table([*map(heading, keys), "t", *columns], body, note)


def names(examined: Sequence[Row]) -> list[str]:
    """What each of the trainings that were examined has along the axes."""
    keys = varying(examined)
    keys += [SEED] if len({each["values"].get(SEED) for each in examined}) > 1 else []
    return [", ".join(f"{heading(key)} {said(each['values'].get(key))}" for key in keys) for each in examined]

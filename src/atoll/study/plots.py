"""A study in pictures: distance against training FLOPs, number of experts, and inference FLOPs."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atoll.pages.drawing import drawn
from atoll.sampling.provenance import PALETTE
from atoll.study.axes import BUDGET, CLUSTERS
from atoll.study.tables import heading, names, said, word_columns

Row = Mapping[str, Any]
WRAPPED, IN_LEGEND = 24, 27
"""Letters of a title in one row: beside a drawing, and in a legend of two columns."""
WIDTH = 4.8
"""Inches of a drawing: on a telephone its letters are as large as they are here."""
SAME = 1.02
"""Up to this ratio two costs are one: steps are whole, so that equal budgets differ a little."""
LEGEND_COLUMNS, MOST_TICKS = 2, 6
STRATEGY = "sample.strategy"
INK, SEA = "#1c2833", "#0b6e8a"


def plots(lines: Sequence[Row], distance: str) -> dict[str, str]:
    """The pictures that this study has something to show in, as SVG by name."""
    wanted = {
        "training": ("training_flops", "training FLOPs, router included", BUDGET),
        "experts": ("clusters", "number of experts", CLUSTERS),
        "inference": ("flops_per_sample", "FLOPs per sample", STRATEGY),
    }
    pictures = {"distances": _distances(lines, distance)} if lines else {}
    for name, (across, label, axis) in wanted.items():
        values = [_across(line, across) for line in lines if not line["monolith"]]
        if values and max(values) > SAME * min(values):
            pictures[name] = _plot(lines, across, label, axis, distance)
    return pictures


def _distances(lines: Sequence[Row], distance: str) -> str:
    """Every line of the table: its mean and interval, each seed a dot; what the data's halves give dashed."""
    titles = ["\n".join(textwrap.wrap(title(line, lines), WRAPPED)) for line in lines]
    rows = sum(1 + text.count("\n") for text in titles)

    def draw(axes: Any) -> None:
        for place, line in enumerate(lines):
            ink = INK if line["monolith"] else SEA
            axes.errorbar(
                line["distance"]["value"],
                place,
                xerr=_half(line),
                color=ink,
                **{"marker": "o", "ms": 6, "capsize": 3, "elinewidth": 1.2},
            )
            if len(line["each"]) > 1:
                axes.scatter(line["each"], [place] * len(line["each"]), color=ink, s=12, alpha=0.45)
        floor = sum(line["floor"] for line in lines) / len(lines)
        axes.axvline(floor, color=INK, lw=0.8, ls="--", alpha=0.6)
        axes.set_yticks(range(len(lines)), titles)
        axes.set(xlabel=distance, xlim=(0, None), ylim=(len(lines) - 0.5, -0.5))
        axes.grid(axis="x", lw=0.4, alpha=0.5)

    return drawn(draw, (WIDTH, 0.9 + 0.15 * rows + 0.1 * len(lines)))


def title(line: Row, lines: Sequence[Row]) -> str:
    """A line of the table in a few words."""
    keys = [key for key in word_columns(lines) if key != CLUSTERS and key in line["values"]]
    who = "monolith" if line["monolith"] else f"{line['values'].get(CLUSTERS)} experts, {line['strategy']}"
    return ", ".join([who, *(_value(key, line["values"][key]) for key in keys)])


def _value(key: str, value: Any) -> str:
    if key == STRATEGY:
        return str(value)
    return f"{said(value)} samples" if key == BUDGET else f"{heading(key)} {said(value)}"


def _across(line: Row, key: str) -> float:
    return float(line["values"].get(CLUSTERS, 1) if key == "clusters" else line[key])


def _plot(lines: Sequence[Row], across: str, label: str, axis: str, distance: str) -> str:
    def draw(axes: Any) -> None:
        for number, (name, curve) in enumerate(_curves(lines, across, axis).items()):
            axes.errorbar(
                [_across(line, across) for line in curve],
                [line["distance"]["value"] for line in curve],
                yerr=[_half(line) for line in curve],
                color=INK if name.startswith("monolith") else PALETTE[number % len(PALETTE)],
                label="\n".join(textwrap.wrap(name, IN_LEGEND)),
                **{"marker": "o", "ms": 4, "lw": 1.3, "capsize": 2, "elinewidth": 0.8},
            )
        axes.set(xlabel=label, ylabel=distance, xscale="log", ylim=(0, None))
        if across == "clusters":
            axes.set_xscale("log", base=2)
        ticks = _ticks(_across(line, across) for line in lines)
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.minorticks_off()
        _legend(axes)

    longest = [len(textwrap.wrap(name, IN_LEGEND)) for name in _curves(lines, across, axis)]
    return drawn(draw, (WIDTH, 2.9 + 0.16 * max(longest) * -(-len(longest) // LEGEND_COLUMNS)))


def _ticks(values: Iterable[float]) -> list[float]:
    """Values that were measured, as far as there is room for their numbers."""
    every = sorted(set(values))
    apart = max(SAME, (every[-1] / every[0]) ** (1 / MOST_TICKS))
    ticks = every[:1]
    for value in every[1:]:
        if value > apart * ticks[-1]:
            ticks.append(value)
    return ticks


def _legend(axes: Any) -> None:
    """Below the picture, where it covers nothing."""
    axes.figure.legend(frameon=False, fontsize=8, loc="outside lower left", ncols=LEGEND_COLUMNS)


def by_time(examined: Sequence[Row]) -> list[str]:
    """The router's entropy, and what top-1 loses, against the time; and the one against the other."""
    titles = names(examined)

    def against_time(key: str, label: str) -> str:
        def draw(axes: Any) -> None:
            for number, (name, each) in enumerate(zip(titles, examined, strict=True)):
                rows = each["times"]
                ink = PALETTE[number % len(PALETTE)]
                axes.plot(
                    [row["t"] for row in rows], [row[key] for row in rows], color=ink, lw=1.4, label=name
                )
            axes.set(xlabel="t", ylabel=label)
            _legend(axes)

        return drawn(draw, (WIDTH, 2.8 + 0.3 * -(-len(titles) // LEGEND_COLUMNS)))

    def together(axes: Any) -> None:
        for number, each in enumerate(examined):
            rows = each["times"]
            ink = PALETTE[number % len(PALETTE)]
            axes.scatter([row["entropy"] for row in rows], [row["greedy"] for row in rows], color=ink, s=14)
        axes.set(xlabel="entropy of the router", ylabel="loss of top-1 above the mixture's")

    greedy = "loss of top-1 above the mixture's"
    return [against_time("entropy", "entropy of the router"), against_time("greedy", greedy), drawn(together)]


def _half(line: Row) -> float:
    high = line["distance"]["high"]
    return 0.0 if high is None else float(high - line["distance"]["value"])


def _curves(lines: Sequence[Row], across: str, axis: str) -> dict[str, list[Row]]:
    """Lines that differ along one axis only, each a curve with a name."""
    different = [key for key in dict.fromkeys(k for line in lines for k in line["values"]) if key != axis]
    different = [key for key in different if len({str(line["values"].get(key)) for line in lines}) > 1]
    curves: dict[str, list[Row]] = {}
    for line in sorted(lines, key=lambda line: _across(line, across)):
        keys = [key for key in different if key in line["values"] and key != CLUSTERS]
        words = [_value(key, line["values"][key]) for key in keys]
        if line["monolith"]:
            words = ["monolith", *words]
        elif CLUSTERS in different:
            words = [f"{line['values'].get(CLUSTERS)} experts", *words]
        curves.setdefault(", ".join(words) or "experts", []).append(line)
    return curves

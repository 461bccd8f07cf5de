"""A study in pictures: distance against training FLOPs, number of experts, and inference FLOPs."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from atoll.gallery import PALETTE
from atoll.study.design import BUDGET, CLUSTERS
from atoll.study.tables import heading, said

Row = Mapping[str, Any]


def plots(lines: Sequence[Row], distance: str) -> dict[str, str]:
    """The pictures that this study has something to show in, as SVG by name."""
    wanted = {
        "training": ("training_flops", "training FLOPs, router included", BUDGET),
        "experts": ("clusters", "number of experts", CLUSTERS),
        "inference": ("flops_per_sample", "FLOPs per sample", "sample.strategy"),
    }
    found = {}
    for name, (across, label, axis) in wanted.items():
        if len({_across(line, across) for line in lines if not line["monolith"]}) > 1:
            found[name] = _plot(lines, across, label, axis, distance)
    return found


def _across(line: Row, key: str) -> float:
    return float(line["values"].get(CLUSTERS, 1) if key == "clusters" else line[key])


def _plot(lines: Sequence[Row], across: str, label: str, axis: str, distance: str) -> str:
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only needed here
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(
        {"svg.hashsalt": "atoll", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for number, (name, curve) in enumerate(_curves(lines, across, axis).items()):
            x = [_across(line, across) for line in curve]
            y = [line["distance"]["value"] for line in curve]
            error = [_half(line) for line in curve]
            colour = "#1c2833" if name.startswith("monolith") else PALETTE[number % len(PALETTE)]
            axes.errorbar(
                x,
                y,
                yerr=error,
                color=colour,
                label=name,
                marker="o",
                ms=4,
                lw=1.3,
                capsize=2,
                elinewidth=0.8,
            )
        scale = "log" if across != "clusters" else "linear"
        axes.set(xlabel=label, ylabel=distance, xscale=scale, ylim=(0, None))
        if across == "clusters":
            axes.set_xscale("log", base=2)
            ticks = sorted({_across(line, across) for line in lines})
            axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        axes.legend(frameon=False, fontsize=8)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


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
        words = [f"{heading(key)} {said(line['values'][key])}" for key in keys]
        if line["monolith"]:
            words = ["monolith", *words]
        elif CLUSTERS in different:
            words = [f"{line['values'].get(CLUSTERS)} experts", *words]
        curves.setdefault(", ".join(words) or "experts", []).append(line)
    return curves

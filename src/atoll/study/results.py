"""What a study leaves behind: its numbers as JSON, CSV and Markdown, and pictures of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll import report
from atoll.runs import read_json, replacing, write_json
from atoll.study import plots, tables
from atoll.study.cells import Workshop
from atoll.study.design import CLUSTERS, Cell


def collect(shop: Workshop, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The numbers of all cells that have some, with what they are of."""
    return [
        {
            "values": json.loads(json.dumps(dict(cell.values))),
            "monolith": cell.monolith,
            "training": cell.training,
            "cell": cell.id,
            "training_flops": cell.flops,
            "steps": cell.config.expert.steps,
            "batch": cell.config.expert_for(0).batch,
            "group": json.dumps(cell.group),
            "beside": json.dumps(cell.beside),
            **read_json(shop.result(cell)),
        }
        for cell in cells
        if shop.result(cell).is_file()
    ]


def write(shop: Workshop, cells: Sequence[Cell]) -> dict[str, Any]:
    """Write everything that can be said so far, and tell where it is."""
    rows, config = collect(shop, cells), shop.study.config
    lines = tables.groups(rows)
    distance = next(iter(rows[0]["features"].values()))["distance"] if rows else "distance"
    examined = _examined(shop, cells)
    found: dict[str, Any] = {
        "study": config.name,
        "cells": len(cells),
        "finished": len(rows),
        "best": tables.headline(lines),
        "table": str(shop.folder / "study.md"),
    }
    written = {**found, "lines": lines, "rows": rows, "routing": examined}
    write_json(shop.folder / "study.json", written)
    _write(shop.folder / "study.csv", tables.comma_separated(rows))
    _write(shop.folder / "study.md", tables.markdown(config.name, config.question, lines, distance, examined))
    pictures = plots.plots(lines, distance)
    for name, picture in pictures.items():
        _write(shop.folder / f"{name}.svg", picture)
    if lines:
        text = _page(shop, rows, lines, distance, examined, list(pictures.values()))
        _write(shop.folder / "report.html", text)
        found["report"] = str(shop.folder / "report.html")
    return found


def _page(
    shop: Workshop,
    rows: Sequence[tables.Row],
    lines: Sequence[tables.Row],
    distance: str,
    examined: Sequence[tables.Row],
    pictures: Sequence[str],
) -> str:
    """The page of a study."""
    config, table = shop.study.config, tables.of_lines(lines, distance)
    best = tables.headline(lines)
    seconds = {row["training"]: row["seconds"]["train"] for row in rows}
    times = tables.by_time(examined) if examined else None
    kinds = [
        "monolith" if line["monolith"] else "best" if best and line["change"] == best["change"] else ""
        for line in lines
    ]
    return report.template("study.html.j2").render(
        name=config.name,
        question=config.question,
        answer=_answer(best, distance),
        numbers=[
            (str(len(rows)), "cells"),
            (str(len(seconds)), "distinct trainings"),
            (f"{sum(seconds.values()) / 60:,.0f} min", "of training, added up"),
            (f"{rows[0]['num']:,}", "samples judged in each cell"),
        ],
        plots=pictures,
        note=table.note,
        head=table.head,
        words=len(tables.word_columns(lines)) + 2,
        body=[{"cells": cells, "kind": kind} for cells, kind in zip(table.body, kinds, strict=True)],
        reached=tables.reached(lines),
        by_time=None if times is None else {**times._asdict(), "plots": plots.by_time(examined)},
        facts=[
            ("recipe", config.recipe),
            ("data", shop.study.base_run.data.source),
            ("budget", f"{', '.join(f'{n:,}' for n in config.budget.samples)} samples"),
            ("router's share", f"{config.budget.router:.0%}"),
            *report.made_with(),
        ],
        written=shop.study.path.read_text(encoding="utf-8"),
    )


def _answer(best: dict[str, Any] | None, distance: str) -> str:
    """The study in a sentence."""
    if best is None:
        return ""
    clusters, change = best["values"].get(CLUSTERS), tables.percent(best["change"])
    how = f"with {clusters} experts sampled {best['strategy']}"
    return f"At best, {how}: {distance} {change} against the monolith."


def _examined(shop: Workshop, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Router and experts by time, of every training where they were looked at."""
    found = {}
    for cell in cells:
        path = shop.examined(cell)
        if path is not None and path.is_file() and cell.training not in found:
            values = {key: value for key, value in cell.values.items() if not key.startswith("sample.")}
            found[cell.training] = {"values": values, **read_json(path)}
    return list(found.values())


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")

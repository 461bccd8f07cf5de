"""What a study leaves behind: its numbers as JSON, CSV and Markdown, and pictures of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll.runs import read_json, replacing, write_json
from atoll.study import plots, tables
from atoll.study.cells import Workshop
from atoll.study.design import Cell


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
    found = {
        "study": config.name,
        "cells": len(cells),
        "finished": len(rows),
        "best": tables.headline(lines),
        "table": str(shop.folder / "study.md"),
    }
    written = {**found, "lines": lines, "rows": rows, "routing": examined}
    write_json(shop.folder / "study.json", written)
    _write(shop.folder / "study.csv", tables.comma_separated(rows))
    text = tables.markdown(config.name, config.question, lines, distance)
    _write(shop.folder / "study.md", text + tables.routing(examined))
    for name, picture in plots.plots(lines, distance).items():
        _write(shop.folder / f"{name}.svg", picture)
    return found


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

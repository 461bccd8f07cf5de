"""What a study leaves behind: its numbers as JSON, CSV and Markdown, and pictures of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.pages import report
from atoll.pages.pictures import embedded
from atoll.runs import read_json, replacing, write_json
from atoll.study import answers, plots, tables
from atoll.study import tuning as tuner
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


def write(shop: Workshop, cells: Sequence[Cell], tuning: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Write everything that can be said so far, and tell where it is."""
    rows, config = collect(shop, cells), shop.study.config
    lines = tables.groups(rows)
    distance = next(iter(rows[0]["features"].values()))["distance"] if rows else "distance"
    examined = _examined(shop, cells)
    summary: dict[str, Any] = {
        "study": config.name,
        "cells": len(cells),
        "finished": len(rows),
        "best": answers.headline(lines),
        "table": str(shop.folder / "study.md"),
        "reached": answers.reached(rows),
        "entropy_predicts_greedy_loss": answers.predictions(examined) if examined else [],
        "tuning": list(tuning),
    }
    written = {**summary, "lines": lines, "rows": rows, "routing": examined}
    write_json(shop.folder / "study.json", written)
    _write(shop.folder / "study.csv", tables.comma_separated(rows))
    text = markdown(config.name, config.question, rows, distance, examined, len(cells))
    _write(shop.folder / "study.md", text + _tuned(tuning))
    pictures = plots.plots(lines, distance)
    for name, picture in pictures.items():
        _write(shop.folder / f"{name}.svg", picture)
    if lines:
        text = _page(shop, rows, lines, distance, examined, pictures, len(cells))
        _write(shop.folder / "report.html", text)
        summary["report"] = str(shop.folder / "report.html")
    return summary


def markdown(
    name: str,
    question: str,
    rows: Sequence[tables.Row],
    distance: str,
    examined: Sequence[tables.Row],
    cells: int,
) -> str:
    """All tables of a study."""
    lines = tables.groups(rows)
    if not lines:
        return f"# {name}\n\n{question}\n\nNo cell is finished yet.\n"
    table = tables.of_lines(lines, distance)
    parts = [
        f"# {name}",
        question,
        f"{len(rows)} of {cells} cells are finished." if len(rows) < cells else "",
        tables.written(table),
        table.note,
        "\n".join(f"- {answers.said_reached(each)}" for each in answers.reached(rows)),
    ]
    if examined:
        prediction, times = answers.foretold(examined), tables.by_time(examined)
        parts += [
            "## Does the router's entropy predict what top-1 loses?",
            tables.written(prediction),
            prediction.note,
        ]
        parts += ["## By time", tables.written(times), times.note]
    return "\n\n".join(part for part in parts if part) + "\n"


def _tuned(tuning: Sequence[Mapping[str, Any]]) -> str:
    """What each side tried, and took."""
    if not tuning:
        return ""
    table = tuner.table(tuning)
    return f"\n## Both sides at their best\n\n{tables.written(table)}\n\n{table.note}\n"


def _page(
    shop: Workshop,
    rows: Sequence[tables.Row],
    lines: Sequence[tables.Row],
    distance: str,
    examined: Sequence[tables.Row],
    pictures: Mapping[str, str],
    cells: int,
) -> str:
    """The page of a study."""
    config, table = shop.study.config, tables.of_lines(lines, distance)
    best = answers.headline(lines)
    kinds = [
        "monolith" if line["monolith"] else "best" if best and line["values"] == best["values"] else ""
        for line in lines
    ]
    return report.template("study.html.j2").render(
        name=config.name,
        question=config.question,
        answer=_answer(best, lines, distance),
        numbers=_numbers(rows, cells),
        plots=[PLOTS[name] | {"drawing": drawing} for name, drawing in pictures.items()],
        shown=_shown(shop, lines),
        note=table.note,
        head=table.head,
        words=len(tables.word_columns(lines)) + 2,
        body=[{"cells": cells, "kind": kind} for cells, kind in zip(table.body, kinds, strict=True)],
        reached=[answers.said_reached(each) for each in answers.reached(rows)],
        by_time=_by_time(examined),
        facts=_facts(shop),
        written=shop.study.path.read_text(encoding="utf-8"),
    )


def _numbers(rows: Sequence[tables.Row], cells: int) -> list[tuple[str, str]]:
    """How much there is in all."""
    seconds: dict[str, float] = {}
    for row in rows:
        seconds[row["training"]] = max(row["seconds"]["train"], seconds.get(row["training"], 0.0))
    return [
        (str(len(rows)) if len(rows) == cells else f"{len(rows)} of {cells}", "cells"),
        (str(len(seconds)), "distinct trainings"),
        (report.duration(sum(seconds.values())), "of training, added up"),
        (f"{rows[0]['num']:,}", "samples judged in each cell"),
    ]


def _facts(shop: Workshop) -> list[tuple[str, str]]:
    """What it was made from, and with."""
    config = shop.study.config
    return [
        ("recipe", config.recipe),
        ("data", shop.study.base_run.data.source),
        ("budget", f"{', '.join(f'{n:,}' for n in config.budget.samples)} samples"),
        ("router's share", f"{config.budget.router:.0%}"),
        *report.made_with(),
    ]


PLOTS = {
    "distances": {
        "title": "How far samples are from the data",
        "note": "Left is better. Each row is a line of the table: the mean with its interval, and a pale dot "
        "for each seed. The dashed line is what two halves of the data give.",
    },
    "training": {"title": "Against what training cost", "note": "Lower is better, further left is cheaper."},
    "experts": {"title": "Against the number of experts", "note": "One expert is the monolith."},
    "inference": {
        "title": "Against what a sample costs",
        "note": "Lower is better, further left is cheaper.",
    },
}
MOST_SHOWN = 10


def _shown(shop: Workshop, lines: Sequence[tables.Row]) -> list[dict[str, str]]:
    """Some samples of the first seed of each line: monoliths, then ensembles from the best on."""
    order = sorted(lines, key=lambda line: (not line["monolith"], line["distance"]["value"]))
    pictures = []
    for line in order:
        places = list(shop.shared.glob(f"*/cells/{line['cells'][0]}.png"))
        if places:
            name = f"{plots.title(line, lines)}: {tables.spread(line['distance'])}"
            pictures.append({"name": name, "picture": embedded(places[0]) or ""})
    return pictures[:MOST_SHOWN]


def _by_time(examined: Sequence[tables.Row]) -> dict[str, Any] | None:
    """What the page says of router and experts by time, if a study asks for it."""
    if not examined:
        return None
    drawings = plots.by_time(examined)
    return {"foretold": answers.foretold(examined), "times": tables.by_time(examined), "plots": drawings}


def _answer(best: dict[str, Any] | None, lines: Sequence[tables.Row], distance: str) -> str:
    """The study in a sentence."""
    if best is None:
        return ""
    mean = f"mean over {best['seeds']} seeds" if best["seeds"] > 1 else "one seed"
    winner = f"{plots.title({**best, 'monolith': False}, lines)} ({mean})"
    if best["at_best"]["value"] >= 0:
        return f"No ensemble is nearer to the data than its monolith. Nearest, by {distance}: {winner}."
    change, other = tables.percent(best["at_best"]), best["at_best"] != best["change"]
    against = "the monolith as it is sampled best" if other else "the monolith"
    return f"At best, {distance} {change} against {against}: {winner}, {tables.spread(best['distance'])}."


def _examined(shop: Workshop, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Router and experts by time, of every training where they were looked at."""
    records = {}
    for cell in cells:
        path = shop.examined(cell)
        if path is not None and path.is_file() and cell.training not in records:
            values = {key: value for key, value in cell.values.items() if not key.startswith("sample.")}
            records[cell.training] = {"values": values, **read_json(path)}
    return list(records.values())


def _write(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")

"""What a study leaves behind, from numbers that were written down by hand: nothing is trained or sampled."""

import csv
import json
import re

import pytest

from atoll.runs import write_json
from atoll.study import design, plots, results
from atoll.study.cells import Workshop
from tests.browser import chromium, look, needs_browser
from tests.study.test_design import DATA
from tests.study.test_tables import row

STUDY = """
name = "paper"
question = "Are experts nearer?"
recipe = "tiny.toml"
[budget]
samples = [2000, 4000]
router = 0.1
[axes]
partition.clusters = [2]
sample.strategy = ["top-1"]
seed = [0, 1]
"""
DISTANCES = {(True, 2000): 40.0, (True, 4000): 20.0, (False, 2000): 24.0, (False, 4000): 12.0}
"""By whether it is a monolith, and the budget; the second seed adds one."""


@pytest.fixture(autouse=True)
def _quick_drawings(monkeypatch):
    """Real ones take half a second each."""
    monkeypatch.setattr(plots, "drawn", lambda draw, size=(1, 1): f"<svg>{size}</svg>")


@pytest.fixture
def shop(tiny):
    path = tiny.with_name("paper.toml")
    path.write_text(STUDY)
    return Workshop(design.load(path))


@pytest.fixture
def cells(shop):
    return design.unfold(shop.study, DATA)


def measured(cell):
    """The numbers of a cell as they are written when it is judged."""
    distance = DISTANCES[cell.monolith, cell.values["budget"]] + cell.config.seed
    known = row(distance, monolith=cell.monolith, strategy="ancestral" if cell.monolith else "top-1")
    kept = ("features", "copies", "num", "strategy", "flops_per_sample")
    return {**{key: known[key] for key in kept}, "seconds": {"train": 30.0, "train_cpu": 20.0}}


def finish(shop, cells):
    for cell in cells:
        write_json(shop.result(cell), measured(cell))


def test_only_cells_with_numbers_are_collected_with_what_they_are_of(shop, cells):
    assert results.collect(shop, cells) == []
    finish(shop, cells[2:4])
    rows = results.collect(shop, cells)
    assert [each["cell"] for each in rows] == [cell.id for cell in cells[2:4]]
    for each, cell in zip(rows, cells[2:4], strict=True):
        assert each["values"] == dict(cell.values)
        assert each["training"] == cell.training
        assert each["training_flops"] == cell.flops
        assert each["steps"] == cell.config.expert.steps
        assert each["batch"] == 8
        assert json.loads(each["beside"]) == [list(pair) for pair in cell.beside]


def test_nothing_finished_is_a_sentence_and_no_page(shop, cells):
    summary = results.write(shop, cells)
    assert (summary["finished"], summary["cells"], summary["best"]) == (0, 8, None)
    assert "report" not in summary
    text = (shop.folder / "study.md").read_text()
    assert text == "# paper\n\nAre experts nearer?\n\nNo cell is finished yet.\n"
    assert not list(shop.folder.glob("*.svg"))


def test_all_files_tell_the_same_numbers(shop, cells):
    finish(shop, cells)
    summary = results.write(shop, cells)
    assert (summary["finished"], summary["cells"]) == (8, 8)
    written = json.loads((shop.folder / "study.json").read_text())
    means = {
        (line["monolith"], line["values"]["budget"]): line["distance"]["value"] for line in written["lines"]
    }
    assert means == {key: value + 0.5 for key, value in DISTANCES.items()}
    table = (shop.folder / "study.md").read_text()
    page = (shop.folder / "report.html").read_text()
    for value in means.values():
        assert f"| {value:.2f} ± " in table
        assert f"{value:.2f} ± " in page
    with (shop.folder / "study.csv").open(newline="") as file:
        distances = sorted(float(line["frechet"]) for line in csv.DictReader(file))
    assert distances == sorted(value + seed for value in DISTANCES.values() for seed in (0, 1))


def test_every_number_of_the_table_has_its_name_where_rows_are_stacked(shop, cells):
    finish(shop, cells)
    results.write(shop, cells)
    page = (shop.folder / "report.html").read_text()
    table = page[page.index('<table class="stack">') :]
    row = re.findall(r"<tr[^>]*>(.*?)</tr>", table[: table.index("</table>")])[1]
    named = ["data-title" in each for each, text in re.findall(r"<td([^>]*)>(.*?)</td>", row) if text]
    assert named[0] is False
    assert len(named) > 3
    assert all(named[1:])


def test_the_best_and_the_compute_it_takes(shop, cells):
    finish(shop, cells)
    summary = results.write(shop, cells)
    changes = {budget: [DISTANCES[False, budget] + s for s in (0, 1)] for budget in (2000, 4000)}
    expected = {
        budget: sum(many / (DISTANCES[True, budget] + s) - 1 for s, many in enumerate(each)) / 2
        for budget, each in changes.items()
    }
    assert summary["best"]["change"]["value"] == pytest.approx(min(expected.values()))
    (reached,) = summary["reached"]
    assert all(0.5 < share < 1 for share in reached["each"])  # 24 at half of it, 12 at all of it
    assert not reached["at_most"]


def test_a_study_that_is_not_finished_says_how_far_it_is(shop, cells):
    finish(shop, cells[:3])
    results.write(shop, cells)
    assert "3 of 8 cells are finished." in (shop.folder / "study.md").read_text()
    assert "3 of 8" in (shop.folder / "report.html").read_text()
    finish(shop, cells)
    results.write(shop, cells)
    assert "cells are finished" not in (shop.folder / "study.md").read_text()


def test_writing_twice_leaves_the_same_files(shop, cells):
    finish(shop, cells)
    results.write(shop, cells)
    first = {path.name: path.read_bytes() for path in shop.folder.iterdir()}
    results.write(shop, cells)
    assert {path.name: path.read_bytes() for path in shop.folder.iterdir()} == first
    assert set(first) == {
        "study.json",
        "study.csv",
        "study.md",
        "report.html",
        "distances.svg",
        "training.svg",
    }


@needs_browser
def test_a_browser_shows_all_columns_of_three_axes(tiny, tmp_path):
    path = tiny.with_name("paper.toml")
    three = 'partition.clusters = [2, 3]\nsample.strategy = ["top-1", "ancestral"]'
    path.write_text(STUDY.replace('partition.clusters = [2]\nsample.strategy = ["top-1"]', three))
    shop = Workshop(design.load(path))
    cells = design.unfold(shop.study, DATA)
    finish(shop, cells)
    results.write(shop, cells)
    seen = look(chromium(), shop.folder / "report.html", 1280, tmp_path)
    assert (seen.sticks_out, seen.cut, seen.complaints) == (0, 0, [])


def test_the_page_escapes_what_people_write(tiny):
    path = tiny.with_name("paper.toml")
    path.write_text(STUDY.replace("Are experts nearer?", "<script>alert(1)</script>"))
    shop = Workshop(design.load(path))
    cells = design.unfold(shop.study, DATA)
    finish(shop, cells)
    results.write(shop, cells)
    assert "<script>alert(1)" not in (shop.folder / "report.html").read_text()


LINE = {"values": {"partition.clusters": 8}, "monolith": False, "strategy": "top-1", "seeds": 3}


def headline(change, seeds=3, at_best=None):
    number = {"value": 5.0, "low": 4.0, "high": 6.0, "num": 9}
    return {
        **LINE,
        "seeds": seeds,
        "distance": number,
        "change": {**number, "value": change, "high": change + 0.1},
        "at_best": {**number, "value": at_best or change, "high": (at_best or change) + 0.1},
    }


def test_the_answer_is_a_sentence_that_claims_no_gain_where_there_is_none():
    best = headline(-0.25)
    assert results._answer(best, [best], "FID") == (
        "At best, FID -25 ± 10 % against the monolith: 8 experts, top-1 (mean over 3 seeds), 5.00 ± 1.00."
    )
    assert "-20 ± 10 % against the monolith as it is sampled best:" in results._answer(
        headline(-0.25, at_best=-0.2), [best], "FID"
    )
    worse = headline(0.0, seeds=1)
    assert results._answer(worse, [worse], "FID") == (
        "No ensemble is nearer to the data than its monolith. Nearest, by FID: 8 experts, top-1 (one seed)."
    )
    assert results._answer(None, [], "FID") == ""


def test_a_router_is_told_once_for_each_training(tiny):
    path = tiny.with_name("paper.toml")
    path.write_text(STUDY.replace('["top-1"]', '["top-1", "full"]'))
    shop = Workshop(design.load(path, ["evaluate.routing=20"]))
    cells = design.unfold(shop.study, DATA)
    for cell in cells:
        place = shop.examined(cell)
        assert (place is None) == cell.monolith
        if place is not None:
            write_json(place, {"times": [], "num": 20})
    examined = results._examined(shop, cells)
    assert len(examined) == 2 * 2  # budgets and seeds; strategies share their training
    assert all("sample.strategy" not in each["values"] for each in examined)


def test_pictures_are_shown_from_the_monolith_on_and_not_too_many(shop, monkeypatch):
    monkeypatch.setattr(results, "embedded", lambda path: path.stem)
    lines = []
    for number in range(14):
        line = {**headline(-0.1), "cells": [f"cell-{number}"], "monolith": number == 13}
        lines.append({**line, "distance": {**line["distance"], "value": float(20 - number % 13)}})
        if number != 12:
            place = shop.shared / "training" / "cells" / f"cell-{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    shown = [each["picture"] for each in results._shown(shop, lines)]
    assert shown == ["cell-13", *(f"cell-{number}" for number in range(11, 2, -1))]
    assert len(shown) == results.MOST_SHOWN

"""Tables of studies, on numbers worked out by hand."""

import csv
import io
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.study import plots, tables


def row(
    distance, *, monolith=False, seed=0, budget=100, flops=1.0, clusters=8, strategy="ancestral", entry=None
):
    number = {"value": distance, "low": distance - 1, "high": distance + 1, "num": 50}
    share = {"value": 0.5, "low": None, "high": None, "num": 50}
    values = {"budget": budget, "seed": seed, "partition.clusters": 1 if monolith else clusters}
    if not monolith:
        values["sample.strategy"] = strategy
    ways = {} if entry is None else {"sample.entry": entry}
    values |= ways
    group = [("monolith", monolith), *((k, str(v)) for k, v in values.items() if k != "seed")]
    beside = [("budget", str(budget)), ("seed", str(seed)), *ways.items()]
    return {
        "values": values,
        "monolith": monolith,
        "training": f"{monolith} {seed} {budget} {clusters}",
        "cell": "c",
        "training_flops": flops,
        "flops_per_sample": 10.0,
        "strategy": strategy,
        "num": 50,
        "group": json.dumps(group),
        "beside": json.dumps(beside),
        "features": {
            "classifier": {
                "frechet": number,
                **dict.fromkeys(("kernel", "precision", "recall"), share),
                "floor": {"frechet": 0.4},
                "distance": "Fréchet distance, classifier",
            }
        },
        "copies": {"value": 0.01},
    }


TWO_SEEDS = [
    row(20.0, monolith=True, seed=0),
    row(10.0, seed=0),
    row(24.0, monolith=True, seed=1),
    row(18.0, seed=1),
]


def test_each_ensemble_is_compared_with_the_monolith_of_its_own_seed():
    monolith, experts = tables.groups(TWO_SEEDS)
    assert monolith["monolith"]
    assert monolith["distance"]["value"] == pytest.approx(22)
    assert experts["distance"]["value"] == pytest.approx(14)
    assert experts["change"]["value"] == pytest.approx((-0.5 - 0.25) / 2)  # not 14 / 22 - 1
    assert experts["change"]["low"] < -0.5 < -0.25 < experts["change"]["high"]
    assert experts["each"] == [10, 18]


def test_the_table_says_it():
    table = tables.of_lines(tables.groups(TWO_SEEDS), "Fréchet distance, classifier")
    text = tables.written(table)
    assert "| monolith |" in text
    assert "-38 ±" in text
    assert "Mean over 2 seeds" in table.note
    assert "floor, which two halves of the data give at as many samples, is 0.4" in table.note
    column = table.head.index("kernel distance")
    assert [line[column] for line in table.body] == ["0.5 ± 0"] * 2


def test_numbers_of_any_size_are_said_with_three_digits():
    assert tables.significant({"value": 261.04, "low": 240.0, "high": 282.08}) == "261 ± 21"
    assert tables.significant({"value": 0.0031624, "low": None, "high": None}) == "0.00316"


def test_one_seed_has_the_bootstrap_interval_of_its_cells():
    """± 1 of 10 and ± 1 of 20 are 10 % and 5 %, which make 11.2 % of a half."""
    lines = tables.groups(TWO_SEEDS[:2])
    assert tables.spread(lines[0]["distance"]) == "20.00 ± 1.00"
    assert tables.percent(lines[1]["change"]) == "-50 ± 6 %"
    assert lines[1]["change"]["high"] == pytest.approx(-0.5 + 0.5 * math.hypot(0.1, 0.05))
    assert "knows nothing of other seeds" in tables.of_lines(lines, "distance").note
    assert tables.spread({"value": 0.5, "low": None, "high": None}, 3) == "0.500"


def test_comma_separated_values_are_all_there():
    read = list(csv.DictReader(io.StringIO(tables.comma_separated(TWO_SEEDS))))
    assert [float(line["frechet"]) for line in read] == [20, 10, 24, 18]
    assert [line["monolith"] for line in read] == ["True", "False"] * 2
    assert read[1]["sample.strategy"] == "ancestral"
    assert read[0]["sample.strategy"] == ""


def test_pictures_are_drawn_where_there_is_something_to_see():
    (alone,) = plots.plots(tables.groups(TWO_SEEDS), "distance").items()
    assert alone[0] == "distances"
    assert "8 experts, ancestral" in alone[1]
    assert plots.plots([], "distance") == {}
    several = [row(20.0, monolith=True), *(row(20.0 - k, clusters=k) for k in (2, 4, 8))]
    assert list(plots.plots(tables.groups(several), "distance")) == ["distances", "experts"]
    budgets = [row(10.0 / b, budget=b, flops=float(b), monolith=m) for b in (1, 2) for m in (True, False)]
    _, picture = plots.plots(tables.groups(budgets), "distance").values()
    assert "training FLOPs, router included" in picture
    assert picture.startswith("<svg")
    same = [
        row(20.0, monolith=True, flops=100.0),
        *(row(9.0, clusters=k, flops=100.0 + k / 8) for k in (2, 8)),
    ]
    assert "training" not in plots.plots(tables.groups(same), "distance"), "whole steps are no other budget"


def test_numbers_along_an_axis_are_those_measured_and_have_room():
    assert plots._ticks([1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]
    assert plots._ticks([100.0, 100.5, 213.0, 214.0]) == [100.0, 213.0]
    assert len(plots._ticks(float(value) for value in range(1, 200))) <= plots.MOST_TICKS + 1


def test_a_legend_covers_nothing():
    several = [row(20.0, monolith=True), *(row(20.0 - k, clusters=k) for k in (2, 4, 8))]
    picture = plots.plots(tables.groups(several), "distance")["experts"]
    below = float(re.search(r'id="legend_1".*?y="([\d.]+)"', picture, re.DOTALL)[1])
    axis = float(re.search(r'id="matplotlib.axis_1".*?y="([\d.]+)"', picture, re.DOTALL)[1])
    assert below > axis


def test_values_of_axes_are_said_without_brackets():
    assert tables.said([]) == "none"
    assert tables.said([{"clusters": [0], "path": "cosine"}]) == "clusters: 0, path: cosine"
    assert tables.said(12_500) == "12,500"
    assert tables.said(None) == ""


def test_lines_of_fewer_seeds_are_told_apart():
    note = tables.of_lines(tables.groups([*TWO_SEEDS, row(9.0, strategy="top-1")]), "distance").note
    assert "Mean over 1 to 2 seeds" in note
    assert "where there is one seed yet" in note


def test_an_ensemble_without_its_monolith_has_no_change():
    (line,) = tables.groups([row(10.0)])
    assert line["change"] is None
    table = tables.of_lines([line], "distance")
    assert table.body[0][table.head.index("against the monolith")] == ""


TWO_WAYS = [
    row(distance + extra, monolith=monolith, seed=seed, entry=entry)
    for monolith, entry, distance in [
        (True, "noise", 20.0),
        (True, "later", 12.0),
        (False, "noise", 10.0),
        (False, "later", 9.0),
    ]
    for seed, extra in [(0, 0.0), (1, 3.0)]
]


def test_each_ensemble_is_compared_with_the_monolith_as_it_is_sampled_best_too():
    """From noise 10 of 20 looks like half; the same monolith has 12 in another way, which is its best."""
    noise, later = tables.groups(TWO_WAYS)[2:]
    assert noise["change"]["value"] == pytest.approx((10 / 20 + 13 / 23) / 2 - 1)
    assert noise["at_best"]["value"] == pytest.approx((10 / 12 + 13 / 15) / 2 - 1)
    assert later["at_best"] == later["change"]
    table = tables.of_lines(tables.groups(TWO_WAYS), "distance")
    column = table.head.index("against it at its best")
    assert column == table.head.index("against the monolith") + 1
    assert [line[column].split(" ")[0] for line in table.body] == ["", "", "-15", "-22"]
    assert "with it as it is sampled best" in table.note


def test_a_way_that_not_every_seed_has_is_not_the_best():
    """While a study is under way one seed may be ahead of the others."""
    some = [
        each
        for each in TWO_WAYS
        if each["values"].get("sample.entry") == "noise" or each["values"]["seed"] == 0
    ]
    noise = next(
        line
        for line in tables.groups(some)
        if not line["monolith"] and line["values"]["sample.entry"] == "noise"
    )
    assert noise["at_best"] == noise["change"]


def test_a_monolith_of_another_budget_is_not_compared_with():
    lines = tables.groups([row(20.0, monolith=True, budget=50), row(10.0, budget=100)])
    assert [line["change"] for line in lines if not line["monolith"]] == [None]


def test_divergences_are_the_mean_of_the_cells_that_know_them():
    cells = [row(10.0, seed=seed) for seed in (0, 1, 2)]
    for cell, value in zip(cells, (0.1, 0.3), strict=False):
        cell["classes"] = {"divergence": {"value": value}}
    (line,) = tables.groups(cells)
    assert line["classes"] == pytest.approx(0.2)
    assert line["clusters"] is None


def test_axes_along_which_nothing_differs_have_no_column():
    lines = tables.groups([row(9.0, clusters=2), row(9.0, clusters=4), row(9.0, clusters=4, strategy="full")])
    assert tables.varying(lines) == ["partition.clusters", "sample.strategy"]
    assert tables.word_columns(lines) == ["partition.clusters"]
    assert tables.of_lines(lines, "distance").head[:3] == ["", "clusters", "strategy"]


def test_every_row_of_a_table_has_a_cell_for_each_head():
    table = tables.of_lines(tables.groups([*TWO_SEEDS, row(9.0, budget=7, strategy="full")]), "distance")
    assert {len(each) for each in table.body} == {len(table.head)}
    bars = [line.count("|") for line in tables.written(table).splitlines()]
    assert set(bars) == {len(table.head) + 1}


@given(st.one_of(st.text("abc,\"\n'", max_size=9), st.integers(), st.lists(st.integers(), max_size=3)))
def test_any_value_of_an_axis_survives_comma_separated_values(value):
    cell = row(10.0)
    cell["values"]["expert.odd"] = value
    (read,) = csv.DictReader(io.StringIO(tables.comma_separated([cell]), newline=""))
    assert read["expert.odd"] == (value if isinstance(value, str) else json.dumps(value))


def test_every_kind_of_features_is_a_line_of_its_own():
    cell = row(10.0)
    cell["features"]["pixels"] = {
        **cell["features"]["classifier"],
        "frechet": {"value": 3, "low": 2, "high": 4},
    }
    lines = list(csv.DictReader(io.StringIO(tables.comma_separated([cell]))))
    assert [(line["features"], float(line["frechet"])) for line in lines] == [
        ("classifier", 10),
        ("pixels", 3),
    ]
    assert tables.distance_of(cell) == 10, "the first is the one that is told"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (None, ""),
        ({"value": 0.125, "low": None, "high": None}, "+12 %"),
        ({"value": -0.5, "low": -0.6, "high": -0.4}, "-50 ± 10 %"),
    ],
)
def test_a_change_always_has_its_sign(number, words):
    assert tables.percent(number) == words


def test_what_was_examined_is_a_row_for_each_time():
    columns = ("accuracy", "calibration", "entropy", "own", "others", "full", "top-1", "greedy")
    times = [{"t": t, **{name: index / 8 for index, name in enumerate(columns)}} for t in (0.05, 0.15)]
    examined = [{"values": {"budget": budget, "seed": 0}, "times": times} for budget in (10, 20)]
    table = tables.by_time(examined)
    assert table.head == ["budget (samples)", "t", *columns]
    assert [each[:2] for each in table.body] == [[b, t] for b in ("10", "20") for t in ("0.05", "0.15")]
    assert [float(number) for number in table.body[0][2:]] == [index / 8 for index in range(8)]


def test_trainings_that_differ_by_their_seed_are_named_by_it():
    examined = [{"values": {"budget": 10, "seed": seed}} for seed in (3, 4)]
    assert tables.names(examined) == ["seed 3", "seed 4"]
    assert tables.names([{"values": {"budget": budget, "seed": 3}} for budget in (10, 2000)]) == [
        "budget (samples) 10",
        "budget (samples) 2,000",
    ]

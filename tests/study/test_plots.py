"""Pictures of a study: what is put onto their axes, by axes that write it down, and what they are called."""

import re
from typing import Any

import pytest

from atoll.sampling.provenance import PALETTE
from atoll.study import plots, tables
from tests.study.test_answers import CHECKPOINTS
from tests.study.test_tables import TWO_SEEDS, row

ONE_SEED = [row(20.0, monolith=True), row(10.0)]


class Paper:
    """Axes that remember what was drawn."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.figure = self

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **settings: self.calls.append((name, args, settings))

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, settings) for called, args, settings in self.calls if called == name]


@pytest.fixture
def papers(monkeypatch):
    """All that is drawn, in order."""
    every: list[Paper] = []

    def drawn(draw, size=(1, 1)):
        paper = Paper()
        draw(paper)
        every.append(paper)
        return f"drawing {len(every)}"

    monkeypatch.setattr(plots, "drawn", drawn)
    return every


def budgets(*seeds):
    """Distances of 10 / b at budgets 1 and 2, those of the monolith twice as large."""
    return [
        row((1 + m) * 10.0 / b, budget=b, flops=float(b), monolith=m, seed=seed)
        for seed in seeds
        for b in (1, 2)
        for m in (True, False)
    ]


def test_every_line_is_a_point_with_its_interval_and_a_dot_for_each_seed(papers):
    lines = tables.groups(TWO_SEEDS)
    plots._distances(lines, "distance")
    (paper,) = papers
    bars = paper.of("errorbar")
    assert [args for args, _ in bars] == [(22.0, 0), (14.0, 1)]
    for (_, settings), line in zip(bars, lines, strict=True):
        assert settings["xerr"] == pytest.approx(line["distance"]["high"] - line["distance"]["value"])
    assert [args for args, _ in paper.of("scatter")] == [([20, 24], [0, 0]), ([10, 18], [1, 1])]
    assert [settings["color"] for _, settings in bars] == [plots.INK, plots.SEA]


def test_one_seed_has_no_dots_beside_its_point(papers):
    plots._distances(tables.groups(ONE_SEED), "distance")
    assert papers[0].of("scatter") == []


def test_the_floor_is_the_mean_of_the_lines_floors(papers):
    lines = [
        {**line, "floor": floor} for line, floor in zip(tables.groups(ONE_SEED), (0.2, 0.6), strict=True)
    ]
    plots._distances(lines, "distance")
    ((args, settings),) = papers[0].of("axvline")
    assert args[0] == pytest.approx(0.4)
    assert settings["ls"] == "--"


def test_the_first_line_of_the_table_is_on_top(papers):
    plots._distances(tables.groups(TWO_SEEDS), "distance")
    ((_, settings),) = papers[0].of("set")
    bottom, top = settings["ylim"]
    assert bottom > top
    assert settings["xlim"] == (0, None), "a distance begins with nothing"


def test_curves_go_along_their_axis_in_its_order(papers):
    lines = tables.groups(list(reversed(budgets(0))))
    drawings = plots.plots(lines, "distance")
    assert list(drawings) == ["distances", "training"]
    bars = papers[1].of("errorbar")
    assert [args for args, _ in bars] == [([1.0, 2.0], [20.0, 10.0]), ([1.0, 2.0], [10.0, 5.0])]
    labels = [settings["label"] for _, settings in bars]
    assert labels[0] == "monolith"
    assert labels[1].startswith("8 experts")
    assert bars[0][1]["color"] == plots.INK
    assert bars[1][1]["color"] == PALETTE[1]


def test_numbers_of_experts_are_on_a_scale_of_doublings(papers):
    several = [row(20.0, monolith=True), *(row(20.0 - k, clusters=k) for k in (8, 2, 4))]
    plots.plots(tables.groups(several), "distance")
    paper = papers[1]
    assert paper.of("set_xscale") == [(("log",), {"base": 2})]
    assert paper.of("set_xticks") == [(([1.0, 2.0, 4.0, 8.0], ["1", "2", "4", "8"]), {})]


@pytest.mark.parametrize(("ratio", "shown"), [(1.0, False), (1.01, False), (1.03, True)])
def test_costs_that_are_nearly_equal_are_no_axis(ratio, shown, papers):
    rows = [row(20.0, monolith=True, flops=1e9)]  # what a monolith costs does not make one
    rows += [row(9.0, clusters=2, flops=100.0), row(8.0, clusters=4, flops=100.0 * ratio)]
    assert ("training" in plots.plots(tables.groups(rows), "distance")) is shown


def test_strategies_that_cost_differently_are_shown_against_it(papers):
    rows = [row(20.0, monolith=True), row(10.0), {**row(9.0, strategy="full"), "flops_per_sample": 80.0}]
    assert list(plots.plots(tables.groups(rows), "distance")) == ["distances", "inference"]
    bars = papers[1].of("errorbar")
    assert [args[0] for args, _ in bars] == [[10.0], [10.0, 80.0]]


def test_titles_say_what_tells_lines_apart():
    lines = tables.groups(budgets(0))
    titles = [plots.title(line, lines) for line in lines]
    assert titles == [
        "monolith, 1 samples",
        "monolith, 2 samples",
        "8 experts, ancestral, 1 samples",
        "8 experts, ancestral, 2 samples",
    ]
    alone = tables.groups(ONE_SEED)
    assert [plots.title(line, alone) for line in alone] == ["monolith", "8 experts, ancestral"]


def test_an_interval_that_is_not_known_has_no_bar():
    assert plots._half({"distance": {"value": 3.0, "low": None, "high": None}}) == 0
    assert plots._half({"distance": {"value": 3.0, "low": 2.5, "high": 3.5}}) == 0.5


def test_curves_differ_along_the_axis_only():
    rows = [row(9.0, clusters=k, strategy=s) for k in (2, 4) for s in ("top-1", "full")]
    curves = plots._curves(tables.groups(rows), "clusters", "partition.clusters")
    assert {
        name: [line["values"]["partition.clusters"] for line in curve] for name, curve in curves.items()
    } == {
        "top-1": [2, 4],
        "full": [2, 4],
    }
    alone = plots._curves(tables.groups(rows[:1]), "clusters", "partition.clusters")
    assert list(alone) == ["experts"]


def test_by_time_there_are_two_curves_for_each_checkpoint_and_all_pairs(papers):
    assert plots.by_time(CHECKPOINTS) == ["drawing 1", "drawing 2", "drawing 3"]
    entropy, greedy, together = papers
    for paper, key in ((entropy, "entropy"), (greedy, "greedy")):
        assert [args for args, _ in paper.of("plot")] == [
            ([time["t"] for time in each["times"]], [time[key] for time in each["times"]])
            for each in CHECKPOINTS
        ]
        assert [settings["label"] for _, settings in paper.of("plot")] == [
            f"budget (samples) {budget}" for budget in (10, 20, 40)
        ]
    points = [pair for args, _ in together.of("scatter") for pair in zip(*args, strict=True)]
    assert points == [(t["entropy"], t["greedy"]) for each in CHECKPOINTS for t in each["times"]]


def test_the_same_lines_are_the_same_bytes():
    lines = tables.groups(ONE_SEED)
    first = plots.plots(lines, "a distance & more")["distances"]
    assert first == plots.plots(lines, "a distance & more")["distances"]
    assert "a distance &amp; more" in first


def test_letters_can_be_read_on_a_telephone():
    """A drawing fills 330 pixels there: letters of legends, the smallest, have seven of them at least."""
    for drawing in plots.plots(tables.groups(budgets(0)), "distance").values():
        width = re.search(r'<svg[^>]* viewBox="0 0 ([0-9.]+)', drawing)
        sizes = [float(size) for size in re.findall(r"font-size: ([0-9.]+)px", drawing)]
        assert width is not None and sizes
        assert min(sizes) * 330 / float(width[1]) >= 7

"""Axes of a study: every combination once, in the order of the file."""

import pytest

from atoll.errors import ConfigError
from atoll.study import axes
from atoll.study.settings import BudgetConfig, StudyConfig

BUDGET = BudgetConfig(samples=(2000, 4000))
ALONG = {"partition": {"clusters": [2, 4]}, "sample": {"strategy": ["ancestral", "top-1"]}, "seed": [0, 1, 2]}


def study(along, budget=BUDGET):
    return StudyConfig(name="small", recipe="tiny.toml", budget=budget, axes=along)


def test_every_combination_is_a_point_in_the_order_of_the_file():
    points = list(axes.points(study(ALONG)))
    assert len(points) == 2 * 2 * 2 * 3
    assert list(points[0]) == ["budget", "partition.clusters", "sample.strategy", "seed"]
    assert [point["seed"] for point in points[:4]] == [0, 1, 2, 0], "the last axis runs first"
    assert len({tuple(point.values()) for point in points}) == len(points)


def test_shares_of_a_start_and_ranks_are_axes_where_there_are_any():
    budget = BUDGET.model_copy(update={"start": (0.5, 0.8), "adapter": (0, 2)})
    assert axes.axes(study({}, budget)) == {"budget": [2000, 4000], "start": [0.5, 0.8], "adapter": [0, 2]}


@pytest.mark.parametrize("values", [3, [], "ancestral"])
def test_an_axis_is_a_list(values):
    with pytest.raises(ConfigError, match=r"axes\.seed must be a list of values"):
        axes.axes(study({"seed": values}))

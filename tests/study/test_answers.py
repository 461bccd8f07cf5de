"""What a study answers, on numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.study import answers, tables
from tests.study.test_tables import TWO_SEEDS, TWO_WAYS, row


def test_the_best_is_the_ensemble_that_gains_most():
    worse = [row(19.0, seed=seed, strategy="top-1") for seed in (0, 1)]
    lines = tables.groups([*TWO_SEEDS, *worse])
    best = answers.headline(lines)
    assert best["strategy"] == "ancestral"
    assert best["seeds"] == 2
    assert best["change"] == lines[1]["change"]
    assert answers.headline(tables.groups(TWO_SEEDS[:1])) is None


def test_the_best_is_not_who_has_the_weakest_monolith():
    """By the monolith of the same way 10 of 20 is more than 9 of 12; what is nearest to the data is 9."""
    best = answers.headline(tables.groups(TWO_WAYS))
    assert best["values"]["sample.entry"] == "later"
    assert best["at_best"]["value"] == pytest.approx((9 / 12 + 12 / 15) / 2 - 1)


@pytest.mark.parametrize(
    ("goal", "expected"), [(4.0, 100.0), (math.sqrt(8.0), 10**2.5), (9.0, 10.0), (1.0, math.inf)]
)
def test_what_must_be_spent_for_a_distance(goal, expected):
    assert answers.to_reach(goal, [10, 100, 1000], [8.0, 4.0, 2.0]) == pytest.approx(expected)


def budgets(seed, monolith, experts):
    """A study of three budgets: the monolith's distances and those of the experts."""
    found = []
    for budget, one, many in zip((25, 50, 100), monolith, experts, strict=True):
        found += [
            row(one, monolith=True, seed=seed, budget=budget, flops=float(budget)),
            row(many, seed=seed, budget=budget, flops=float(budget)),
        ]
    return found


def test_the_compute_for_the_monoliths_distance_is_found_seed_by_seed():
    rows = budgets(0, (40, 30, 20), (32, 16, 10)) + budgets(1, (50, 40, 16), (32, 16, 10))
    (found,) = answers.reached(rows)
    # halving 32 takes a doubling of the budget: 20 is log2(32 / 20) doublings from 25, and 16 one
    first, second = 0.25 * 32 / 20, 0.5
    assert found["each"] == pytest.approx([first, second])
    assert found["share"]["value"] == pytest.approx((first + second) / 2)
    assert found["share"]["low"] < first
    assert not found["at_most"]
    said = answers.said_reached(found)
    assert said.startswith("8 experts, ancestral: the monolith's final distance of 18.00")
    assert "with 0.45 ± 0.64 of its compute, mean over 2 seeds: 2.2 times less." in said


def test_a_goal_below_the_smallest_budget_is_an_upper_bound():
    (found,) = answers.reached(budgets(0, (40, 30, 20), (15, 12, 10)))
    assert found["share"]["value"] == pytest.approx(0.25)
    assert "with at most 0.25 of its compute: 4.0 times less at least." in answers.said_reached(found)


def test_a_distance_that_is_never_reached_is_said_so():
    never = budgets(0, (20, 20, 20), (30, 30, 30))
    (found,) = answers.reached(never)
    assert found["share"] is None
    assert answers.said_reached(found).endswith("is reached never.")
    (some,) = answers.reached([*never, *budgets(1, (40, 30, 20), (32, 16, 10))])
    assert "with 1 of 2 seeds only" in answers.said_reached(some)


def test_one_budget_says_nothing_of_the_compute():
    assert answers.reached(TWO_SEEDS) == []


def checkpoint(budget, entropies, greedy):
    times = [
        {"t": t, "entropy": e, "greedy": g, "full": 0.5}
        for t, e, g in zip((0.1, 0.5, 0.9, 0.95), entropies, greedy, strict=True)
    ]
    return {"values": {"budget": budget}, "times": times}


CHECKPOINTS = [
    checkpoint(10, (0.1, 0.4, 0.8, 0.9), (0.001, 0.02, 0.05, 0.04)),
    checkpoint(20, (0.05, 0.3, 0.7, 0.85), (0.002, 0.01, 0.04, 0.03)),
    checkpoint(40, (0.02, 0.2, 0.75, 0.95), (0.0, 0.005, 0.06, 0.01)),
]


def test_what_entropy_predicts_over_times_and_over_checkpoints():
    found = {each["over"]: each for each in answers.predictions(CHECKPOINTS)}
    rows = [row for each in CHECKPOINTS for row in each["times"]]

    def spearman(some):
        return stats.spearmanr([r["entropy"] for r in some], [r["greedy"] for r in some]).statistic

    everything = found["all times and checkpoints"]
    assert everything["pairs"] == 12
    assert everything["correlation"]["value"] == pytest.approx(spearman(rows))
    within = found["times, within a checkpoint (mean of 3)"]
    assert within["pairs"] == 4
    expected = sum(spearman(each["times"]) for each in CHECKPOINTS) / 3
    assert within["correlation"]["value"] == pytest.approx(expected)
    across = found["checkpoints, at a time (mean of 4)"]
    expected = sum(spearman([each["times"][i] for each in CHECKPOINTS]) for i in range(4)) / 4
    assert across["correlation"]["value"] == pytest.approx(expected)
    assert across["pairs"] == 3
    assert "times, budget (samples) 20" in found
    table = answers.foretold(CHECKPOINTS)
    assert len(table.body) == 3 + 3
    assert "±" in table.body[0][2]
    assert len(answers.predictions(CHECKPOINTS[:1])) == 1


def test_where_greedy_routing_breaks():
    said = answers.where_greedy_breaks(CHECKPOINTS)
    worst = (0.05 + 0.04 + 0.06) / 3 / 0.5
    assert f"most at t = 0.90: its velocity loss is {worst:.1%} above" in said
    assert said.endswith("At t = 0.10 it is below 1 %.")


@given(st.floats(0.1, 3), st.floats(0.5, 50), st.floats(1.0, 4.0))
def test_on_a_power_law_the_answer_is_exact(power, scale, share):
    """Distances of a · C^-p are a line in the logarithms, so that what is between two points is on it."""
    spent = [1.0, 2.0, 4.0]
    goal = scale * share**-power
    assert answers.to_reach(goal, spent, [scale * cost**-power for cost in spent]) == pytest.approx(share)


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=6), st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_harder_goal_never_costs_less(distances, one, other):
    spent = [float(2**index) for index in range(len(distances))]
    easy, hard = max(one, other), min(one, other)
    assert answers.to_reach(easy, spent, distances) <= answers.to_reach(hard, spent, distances) * (1 + 1e-9)


def test_ensembles_without_a_monolith_of_their_seed_reach_nothing():
    rows = budgets(0, (40, 30, 20), (32, 16, 10))
    lonely = [each for each in budgets(1, (1, 1, 1), (3, 2, 1)) if not each["monolith"]]
    (found,) = answers.reached([*rows, *lonely])
    assert len(found["each"]) == 1


def test_kinds_of_ensembles_are_answered_apart():
    rows = budgets(0, (40, 30, 20), (32, 16, 10))
    rows += [
        row(distance, strategy="top-1", budget=budget, flops=float(budget))
        for distance, budget in ((30, 25), (20, 50), (15, 100))
    ]
    shares = {each["values"]["sample.strategy"]: each["share"]["value"] for each in answers.reached(rows)}
    assert shares == pytest.approx({"ancestral": 0.25 * 32 / 20, "top-1": 0.5})


def test_where_nothing_is_harmless_nothing_is_said_of_it():
    said = answers.where_greedy_breaks([checkpoint(1, (0.1,) * 4, (0.1, 0.2, 0.3, 0.2))])
    assert said.startswith("Top-1 loses most at t = 0.90: its velocity loss is 60.0% above")
    assert "below 1 %" not in said


def test_entropy_that_never_changes_predicts_nothing():
    flat = [checkpoint(budget, (0.5,) * 4, (0.1, 0.2, 0.3, 0.2)) for budget in (10, 20)]
    assert [each["correlation"] for each in answers.predictions(flat)] == [None] * 3
    assert answers.foretold(flat).body == []

import pytest

from atoll.config import SampleConfig
from atoll.evaluate.evaluation import setting
from atoll.pages import measured
from atoll.plan import strategy_costs
from atoll.runs.evaluations import Measurement, Routing
from atoll.runs.known import known

NUMBER = {"value": 12.345, "low": 11.0, "high": 13.5, "num": 100}
FLOOR = {"frechet": 0.321, "kernel": 0.1, "precision": 0.9, "recall": 0.8, "num": 100}


def row(strategy="top-1", **sample):
    space = dict.fromkeys(("frechet", "kernel", "precision", "recall"), NUMBER)
    asked = SampleConfig(strategy=strategy, **sample).model_dump(mode="json")
    return {
        "num": 100,
        "features": {"classifier": {**space, "floor": FLOOR, "distance": "Fréchet distance"}},
        "strategy": strategy,
        "sample": asked,
        "copies": {**NUMBER, "floor": 0.01},
        "classes": {"samples": [0.25, 0.75], "data": [0.5, 0.5], "divergence": NUMBER, "floor": 0.1},
        "as_asked": {**NUMBER, "value": 0.875},
        "switches": {**NUMBER, "value": 1.25},
        "diversity": {**NUMBER, "value": 0.432},
        "diversity_of_data": {**NUMBER, "value": 0.543},
        "clip_score": {**NUMBER, "value": 0.234},
        "experts_per_step": 1.5,
        "makers": [60, 40],
        "seconds": {"sample": 50.0, "judge": 1.0},
    }


def rows(*several):
    return {setting(one): Measurement.model_validate(one) for one in several}


def test_a_distance_stands_beside_the_cost_at_which_it_was_measured(finished):
    """Measured with 10 steps in a run that samples with 3: FLOPs are those of 10."""
    found = measured.strategies(finished, rows(row("top-1", steps=10), row("full", steps=20)), "top-1")
    once = strategy_costs(finished.config, known(finished.partition.contents))["top-1"]["flops"]
    ten = next(one for one in found if one["name"] == "top-1" and one["distance"])
    assert ten["drawn"] == "10 euler steps"
    assert ten["whole"] == f"{10 * once:.3g}"
    assert ten["distance"] == "12.3"
    assert not ten["used"]
    three = next(one for one in found if one["name"] == "top-1" and not one["distance"])
    assert three["drawn"] == "3 euler steps"
    assert three["whole"] == f"{3 * once:.3g}"
    assert three["used"]


def test_what_was_measured_as_the_run_samples_is_told_once(finished):
    found = measured.strategies(finished, rows(row("full", steps=3)), "full")
    assert [one["name"] for one in found].count("full") == 1
    assert next(one for one in found if one["name"] == "full")["distance"]


def test_a_strategy_that_no_table_lists_has_its_cost(finished):
    found = measured.strategies(finished, rows(row("top-3", steps=3)), "full")
    assert found[0]["name"] == "top-3"
    assert float(found[0]["times"]) > 3


def test_everything_that_a_person_would_ask_about():
    table = measured.numbers(rows(row()))
    assert table is not None
    told = {line["what"]: line["cells"][0]["value"] for line in table["rows"]}
    assert told["of the class that was asked for"] == "0.875"
    assert told["changes of expert on the way"] == "1.25"
    assert told["LPIPS within a prompt"] == "0.432"
    assert told["CLIP score"] == "0.234"
    assert told["experts asked a step"] == "1.5"
    assert told["samples by expert"] == "60 · 40"
    assert told["samples drawn a second, there"] == "2"
    assert next(line for line in table["rows"] if "LPIPS" in line["what"])["floor"] == "0.543"


def test_shares_by_class():
    (table,) = measured.shares(rows(row(), row("full")), ["boot", "bag"])
    assert table["head"][:2] == ("class", "data")
    assert len(table["head"]) == 4
    assert table["body"][0] == ["boot", "50.0 %", "25.0 %", "25.0 %"]


def test_nothing_measured_is_nothing_told():
    assert measured.numbers({}) is None
    assert measured.by_time(None) is None
    assert measured.distance_name({}) is None


@pytest.mark.parametrize("found", [None, {"value": 0.5, "low": 0.25, "high": 0.75}])
def test_whether_entropy_foretells_what_top_1_loses(found):
    line = {"t": 0.5, **dict.fromkeys(measured.BY_TIME, 0.1)}
    tree = {"num": 3, "times": [line], "entropy_predicts_greedy_loss": found}
    table = measured.by_time(Routing.model_validate(tree))
    assert table is not None
    assert ("0.50 (0.25 to 0.75)" in table["foretold"]) == (found is not None)


def test_experts_that_were_taken_farther_are_another_setting(finished):
    """The same strategy and steps, extrapolated: its distance stands on a line of its own."""
    table = measured.strategies(finished, rows(row("top-1", steps=3, extrapolate=1.5)), "top-1")
    farther, plain = (next(one for one in table if bool(one["distance"]) == is_it) for is_it in (True, False))
    assert farther["drawn"] == "3 euler steps, extrapolated by 1.5"
    assert (plain["drawn"], plain["whole"] > "") == ("3 euler steps", True)
    assert [one["name"] for one in table if one["drawn"] == "3 euler steps"].count("top-1") == 1

import pytest

from atoll.config import SampleConfig
from atoll.errors import RunError
from atoll.evaluate import evaluation
from atoll.runs import EVALUATION, write_json


def found(networks="a", **sample):
    asked = SampleConfig(**sample).model_dump(mode="json")
    row = {"strategy": asked["strategy"], "num": 1000, "sample": asked}
    return {"networks": networks, "strategies": {asked["strategy"]: row}}


def test_a_second_call_adds_to_the_first(finished):
    first = evaluation.with_earlier(finished, {**found(strategy="full"), "routing": {"num": 1}})
    write_json(finished.path / EVALUATION, first)
    second = evaluation.with_earlier(finished, found(strategy="full", steps=10))
    assert list(second["measured"]) == [
        "full, 50 euler steps, 1,000 samples",
        "full, 10 euler steps, 1,000 samples",
    ]
    assert list(second["strategies"]) == ["full"]
    assert second["routing"] == {"num": 1}


def test_the_same_setting_is_measured_anew(finished):
    write_json(finished.path / EVALUATION, evaluation.with_earlier(finished, found(strategy="full")))
    again = found(strategy="full")
    again["strategies"]["full"]["new"] = True
    measured = evaluation.with_earlier(finished, again)["measured"]
    assert [row.get("new") for row in measured.values()] == [True]


def test_numbers_of_other_networks_do_not_stay(finished):
    write_json(finished.path / EVALUATION, evaluation.with_earlier(finished, found(strategy="full")))
    later = evaluation.with_earlier(finished, found("b", strategy="top-1"))
    assert list(later["measured"]) == ["top-1, 50 euler steps, 1,000 samples"]


def test_numbers_of_a_newer_program_are_not_written_over(finished):
    write_json(finished.path / EVALUATION, {"version": 2, "numbers": "elsewhere"})
    with pytest.raises(RunError, match=r"evaluation\.json was written by a newer Atoll"):
        evaluation.with_earlier(finished, found())


def test_a_setting_says_what_differs():
    row = found(strategy="top-1", solver="heun", guidance=2.0, experts=(0, 2), seed=3)["strategies"]["top-1"]
    assert evaluation.setting(row) == (
        "top-1, 50 heun steps, experts 0 2, guidance 2.0, seed 3, 1,000 samples"
    )


def test_networks_are_known_by_their_weights(finished, taught):
    assert evaluation.networks(finished) == evaluation.networks(finished)
    assert len(evaluation.networks(finished)) == 64

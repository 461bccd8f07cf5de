"""Records of evaluations: what is kept beside what, and how they are said in words."""

from types import SimpleNamespace

import pytest

from atoll.config import SampleConfig
from atoll.errors import ConfigError, RunError
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


def pretended(*done):
    """A run whose networks have these digests; None is one that is not finished."""
    return SimpleNamespace(
        networks=[SimpleNamespace(done=digest is not None, digest=digest) for digest in done]
    )


def test_another_weight_of_any_network_is_another_set_of_networks():
    plain: tuple[str | None, ...] = ("a", "b", "r", None, None)
    others: list[tuple[str | None, ...]] = [
        ("A", "b", "r", None, None),
        ("b", "a", "r", None, None),
        ("a", "b", None, "r", None),
    ]
    others += [("a", "b", "r", "s", None), ("a", "b", "r", None, "s")]
    names = [evaluation.networks(pretended(*each)) for each in (plain, *others)]
    assert len(set(names)) == len(names)
    assert names[0] == evaluation.networks(pretended(*plain))


@pytest.mark.parametrize("key", ["num", "batch", "provenance", "resident", "missing", "band", "compile"])
def test_what_changes_no_sample_is_not_part_of_a_setting(key):
    other = {"num": 9, "batch": 3, "provenance": True, "resident": 1, "missing": "skip"}
    other |= {"band": False, "compile": "off"}
    rows = [record["strategies"]["full"] for record in (found(strategy="full"), found(strategy="full"))]
    rows[1]["sample"] = {**rows[1]["sample"], key: other[key]}
    assert evaluation.setting(rows[0]) == evaluation.setting(rows[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 0.5}, "temperature 0.5"),
        ({"guided": (0.1, 0.6)}, "guided 0.1 0.6"),
        ({"shift": 3.0}, "shift 3.0"),
        ({"model": "student"}, "model student"),
        ({"precision": "float32"}, "precision float32"),
    ],
)
def test_what_changes_samples_is_said(change, words):
    row = found(strategy="full", **change)["strategies"]["full"]
    assert evaluation.setting(row) == f"full, 50 euler steps, {words}, 1,000 samples"


TIMES = [
    {"t": t, "accuracy": 0.5, "calibration": 0.125, "entropy": 0.25, "own": 1.0, "others": 2.0}
    | {"full": 0.75, "top-1": 0.875, "disagreement": 0.0625}
    for t in (0.05, 0.95)
]


def test_router_and_experts_by_time_stand_under_their_names():
    examined = {"times": TIMES, "num": 1234, "entropy_predicts_greedy_loss": None}
    head, *rows, last = evaluation.routing_table(examined).splitlines()
    assert head.split() == [name for name in TIMES[0] if name in head.split()]
    for row, expected in zip(rows, TIMES, strict=True):
        assert [float(number) for number in row.split()] == list(expected.values())
        assert len(row) == len(head), "numbers end where their names end"
    assert last.startswith("on 1,234 real samples at each time")


def test_what_entropy_predicts_is_a_line_of_its_own():
    correlation = {"value": 0.876, "low": 0.5, "high": 1.0, "num": 20}
    examined = {"times": TIMES, "num": 20, "entropy_predicts_greedy_loss": correlation}
    assert evaluation.routing_table(examined).splitlines()[-2] == (
        "entropy and what top-1 loses against full: rank correlation 0.88 (0.50 to 1.00)"
    )


class Other:
    """A model that remembers what it was asked for."""

    def __init__(self, experts, shape):
        self.ensemble = SimpleNamespace(experts=[None] * experts, shape=shape)
        self.asked = {}

    def sample(self, num, **settings):
        self.asked = {"num": num, **settings}
        return "pictures"


def asked_of(other, monkeypatch, tmp_path):
    contents = SimpleNamespace(shape=(1, 4, 4))
    judge = SimpleNamespace(
        real=SimpleNamespace(contents=contents),
        config=SimpleNamespace(num=5),
        conditions=lambda num: {"label": list(range(num))},
    )
    monkeypatch.setattr(evaluation, "open_model", lambda folder: other)
    return evaluation._monolith(tmp_path, judge, {"seed": 3, "experts": (1,), "steps": 7})


def test_the_monolith_is_asked_for_the_same_but_has_no_experts_to_choose_from(monkeypatch, tmp_path):
    other = Other(1, (1, 4, 4))
    assert asked_of(other, monkeypatch, tmp_path) == "pictures"
    assert other.asked == {
        "num": 5,
        "label": [0, 1, 2, 3, 4],
        "seed": 3,
        "steps": 7,
        "strategy": "ancestral",
        "experts": None,
    }


@pytest.mark.parametrize(("experts", "shape"), [(2, (1, 4, 4)), (1, (3, 4, 4))])
def test_what_is_no_monolith_of_these_samples_is_refused_before_anything_is_drawn(
    experts, shape, monkeypatch, tmp_path
):
    other = Other(experts, shape)
    with pytest.raises(ConfigError, match=r"is not a run of one cluster with samples of \(1, 4, 4\)"):
        asked_of(other, monkeypatch, tmp_path)
    assert other.asked == {}

"""What was measured is read by type, and what is wrong with it is said in one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.config import RunConfig, SampleConfig
from atoll.errors import CorruptError, RunError
from atoll.runs import EVALUATION, Run
from atoll.runs.evaluations import NOTHING, Evaluation, read_evaluation
from atoll.runs.parsing import validated

NUMBER = {"value": 1.5, "low": 1.0, "high": 2.0, "num": 9}
SPACE = {**dict.fromkeys(("frechet", "kernel", "precision", "recall"), NUMBER), "distance": "Fréchet"}
ROW = {
    "strategy": "full",
    "num": 9,
    "sample": SampleConfig(steps=3).model_dump(mode="json"),
    "features": {"pixels": {**SPACE, "floor": {"frechet": 0.5, "num": 9}}},
    "copies": {**NUMBER, "floor": 0.0},
}


@pytest.fixture
def written(tmp_path):
    """Give a run with this evaluation."""

    def make(tree):
        run = Run(tmp_path, RunConfig(name="a"))
        (tmp_path / EVALUATION).parent.mkdir(exist_ok=True)
        (tmp_path / EVALUATION).write_text(json.dumps(tree))
        return run

    return make


def test_where_nobody_looked_there_is_nothing(tmp_path):
    assert read_evaluation(Run(tmp_path, RunConfig(name="a"))) is NOTHING


def test_what_was_measured_comes_back(written):
    found = read_evaluation(written({"version": 1, "measured": {"full, 3 steps": ROW}, "networks": "x"}))
    (row,) = found.measured.values()
    assert (row.strategy, row.sample.steps, row.num, row.classes) == ("full", 3, 9, None)
    assert row.first_space.frechet.high == 2.0
    assert row.copies.floor == 0.0
    assert found.routing is None


@pytest.mark.parametrize("gone", ["strategy", "num", "sample", "features", "copies"])
def test_what_is_missing_is_named_with_the_command_that_measures_again(written, gone):
    row = {key: value for key, value in ROW.items() if key != gone}
    with pytest.raises(CorruptError, match=rf"is damaged \('measured.full.{gone}'.*`atoll evaluate`"):
        read_evaluation(written({"version": 1, "measured": {"full": row}}))


def test_what_a_newer_program_wrote_is_not_misread(written):
    with pytest.raises(RunError, match="newer Atoll"):
        read_evaluation(written({"version": 2, "measured": {}}))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["measured", "routing"]))
def test_rubbish_is_refused_in_one_line(tree, key):
    try:
        validated(Evaluation, {key: tree}, "here")
    except CorruptError as error:
        assert "\n" not in str(error)

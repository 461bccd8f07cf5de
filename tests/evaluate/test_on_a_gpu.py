"""Evaluation on a GPU on paper: the same numbers as on the CPU."""

import pytest

from atoll.evaluate import evaluation
from tests.pretend_gpu import pretended_gpu

SMALL = ["evaluate.num=24", "evaluate.bootstrap=20", "evaluate.routing=24", "sample.steps=2"]
SMALL += ["sample.precision=float32", "sample.compile=off", "evaluate.reference=200"]


def numbers(tree, prefix=""):
    """Every number of a tree of facts, by its path."""
    if isinstance(tree, dict):
        return {key: value for k, v in tree.items() for key, value in numbers(v, f"{prefix}/{k}").items()}
    if isinstance(tree, list | tuple):
        return {key: value for k, v in enumerate(tree) for key, value in numbers(v, f"{prefix}/{k}").items()}
    return {prefix: tree} if isinstance(tree, float) and not prefix.endswith("seconds") else {}


@pytest.mark.thorough
def test_evaluation_finds_the_numbers_of_the_cpu(finished):
    run = finished.changed([*SMALL, "evaluate.strategies=['full', 'top-1']"])
    expected = numbers(evaluation.evaluate(run))
    with pretended_gpu():
        found = numbers(evaluation.evaluate(run))
    timed = {key for key in expected if "second" in key}
    assert found.keys() == expected.keys()
    assert len(expected) > 20
    for key in expected.keys() - timed:
        assert found[key] == pytest.approx(expected[key], rel=1e-2, abs=1e-3), key

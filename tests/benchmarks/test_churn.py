import pytest

from benchmarks import churn


@pytest.mark.thorough
def test_experts_are_finished_though_everybody_leaves():
    """Two experts by a few machines; `python -m benchmarks.churn` has a thousand."""
    detail = churn.measure(churn.SMALL._replace(volunteers=12, experts=2, hours=3.0))["detail"]
    assert detail["finished"]
    assert detail["hours"] > detail["hours of machines that never leave"]
    assert 0 <= detail["share of all trained steps that was lost"] < 1

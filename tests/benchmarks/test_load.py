import pytest

from benchmarks import load


@pytest.mark.thorough
def test_right_wrong_and_abandoned_requests():
    """The whole of it, with fewer: 10,000 requests over 500 connections are `python -m benchmarks.load`."""
    requests = 200
    detail = load.measure(requests, connections=requests // 5)["detail"]
    assert detail["server errors"] == detail["answers to the wrong client"] == detail["rows left"] == 0
    assert detail["connections that broke"] == {}
    assert detail["answers by status"][200] > requests // 4
    assert set(detail["answers by status"]) <= {200, 404, 422, 429}

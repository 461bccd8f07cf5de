from benchmarks import load


def test_right_wrong_and_abandoned_requests():
    """The whole of it, with fewer: 10,000 requests over 500 connections are `python -m benchmarks.load`."""
    detail = load.measure(requests=200, connections=40)["detail"]
    assert detail["server errors"] == detail["answers to the wrong client"] == detail["rows left"] == 0
    assert detail["connections that broke"] == {}
    assert detail["answers by status"][200] > 50
    assert set(detail["answers by status"]) <= {200, 404, 422, 429}

from benchmarks import net


def test_volunteers_of_the_benchmark_do_what_real_ones_do():
    """A few for a few seconds; two thousand are `python -m benchmarks.net`."""
    load = net.SMALL._replace(seconds=1.5, requests=20)
    detail = net.measure(load, ["crowd", "growth"])["detail"]
    assert detail["crowd"]["errors"] == {}
    kinds = detail["crowd"]["milliseconds"]
    assert kinds["POST heartbeat"]["num"] > 5 and kinds["all"]["p99"] > 0
    costs = detail["processor ms per request by machines known"]
    assert set(costs) == {"5", "50"} and set(costs["5"]) == {"heartbeat", "lease, upload, submit"}

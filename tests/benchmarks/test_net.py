import pytest

from benchmarks import net


@pytest.mark.thorough
def test_volunteers_of_the_benchmark_do_what_real_ones_do(tmp_path):
    """A few, one after the other; two thousand at once are `python -m benchmarks.net`."""
    costs = net.costs(net.SMALL._replace(requests=20), tmp_path, 5)
    assert set(costs) == {"heartbeat", "lease, upload, submit"}
    assert net.percentiles([3.0, 1.0, 2.0]) == {"num": 3, "median": 2.0, "p99": 3.0, "longest": 3.0}

import pytest

from atoll.errors import ConfigError
from atoll.serve.limits import Limits, limits


def test_one_limit_is_changed_and_the_others_stay():
    changed = limits(["num=3", "seconds=2.5"])
    assert (changed.num, changed.seconds, changed.steps) == (3, 2.5, Limits().steps)


@pytest.mark.parametrize(
    ("change", "reason"),
    [("nun=3", "did you mean 'num'"), ("num=0", "greater than or equal to 1"), ("num=many", "valid integer")],
)
def test_what_is_no_limit_is_said_in_one_line(change, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        limits([change])
    assert "\n" not in str(caught.value)

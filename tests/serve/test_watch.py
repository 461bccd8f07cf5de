import pytest

from atoll.serve.watch import spread


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [([], []), ([1, 2], [1, 2]), ([1, 2, 3, 4], [1, 3, 4]), (list(range(101)), [0, 50, 100])],
)
def test_the_first_the_newest_and_some_between(steps, chosen):
    assert spread(steps, 3) == chosen

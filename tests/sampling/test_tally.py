import pytest

from atoll.errors import Interrupted
from atoll.sampling.tally import Tally


def test_batches_under_way_count_by_their_steps():
    """Two samples and one, two steps each: 2, 3, 5 and 6 of 6 steps taken are 1, 1, 2 and 3 samples."""
    seen = []
    tally = Tally(lambda done, num: seen.append((done, num)), steps=2, num=3)
    two, one = tally.of(2), tally.of(1)
    for report, step in ((two, 1), (one, 1), (two, 2), (one, 2)):
        report(step)
    assert seen == [(1, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("progress", [None, lambda done, num: None])
def test_what_nobody_waits_for_ends_at_its_next_step(progress):
    tally = Tally(progress, steps=2, num=2)
    report = tally.of(2)
    report(1)
    tally.end()
    with pytest.raises(Interrupted):
        report(2)

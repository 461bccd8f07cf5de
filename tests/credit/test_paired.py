"""Changes of losses by pairs, against numbers by hand and a mixture whose answer is known."""

import math

import pytest
import torch

from atoll.credit import paired
from atoll.credit.paired import Change


def test_groups_by_hand():
    before, after = torch.tensor([1.0, 2.0, 3.0, 5.0]), torch.tensor([0.5, 1.0, 3.0, 6.0])
    each = paired.changes(before, after, torch.tensor([0, 0, 4, 4]))
    assert list(each) == [0, 4]
    assert (each[0].mean, each[0].loss, each[0].rows) == (0.75, 1.5, 2)
    assert each[0].error == pytest.approx(0.25)  # 0.5 and 1 have a deviation of 0.25 √2, of two rows
    assert (each[4].mean, each[4].loss) == (-0.5, 4.0)
    assert paired.changes(before[:1], after[:1], torch.tensor([0]))[0].error == math.inf


def test_rows_that_do_not_change_need_not_be_asked():
    before, after = torch.tensor([2.0, 0.0, 4.0, 0.0]), torch.tensor([1.0, 0.0, 4.0, 0.0])
    measured = torch.tensor([False, False, True, False])
    (one,) = paired.changes(before, after, torch.zeros(4), measured).values()
    assert (one.mean, one.loss, one.rows) == (0.25, 4.0, 4)


@pytest.mark.parametrize(
    ("mean", "error", "share", "rose"),
    [
        (-0.03, 0.001, 0.01, True),
        (-0.03, 0.001, 0.05, False),  # not by enough
        (-0.03, 0.01, 0.01, False),  # three standard errors are noise
        (0.5, 0.001, 0.01, False),
    ],
)
def test_a_rise_is_more_than_noise_and_more_than_a_share(mean, error, share, rose):
    assert Change(mean, error, 1.0, 64).rose(share) is rose


def test_a_mixture_is_that_of_its_parts():
    """Shares need not add up to one; errors of independent groups add by their squares."""
    each = {0: Change(0.2, 0.03, 1.0, 10), 3: Change(-0.1, 0.04, 2.0, 30)}
    whole = paired.together(each, {0: 0.6, 1: 9.0, 3: 0.2})
    assert whole.mean == pytest.approx(0.75 * 0.2 - 0.25 * 0.1)
    assert whole.loss == pytest.approx(1.25)
    assert whole.error == pytest.approx(math.hypot(0.75 * 0.03, 0.25 * 0.04))
    assert whole.rows == 40

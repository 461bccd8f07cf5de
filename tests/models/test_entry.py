"""Moments beside an expert: kept as they are, and refused where they are damaged."""

import pytest
import torch

from atoll.errors import CorruptError
from atoll.flow import gaussian
from atoll.models import checkpoint, entry


def measured(seed=0):
    x_0 = torch.randn(30, 2, 4, generator=torch.Generator().manual_seed(seed))
    errors = torch.tensor([[1.0, 2.0], [3.0, 1.5]])
    return entry.Entry(gaussian.fitted(x_0, 3), torch.tensor([0.5, 0.9]), errors)


@pytest.mark.parametrize("shifts", [None, torch.arange(24.0).view(3, 2, 4)], ids=["untold", "told"])
def test_what_is_written_is_read(tmp_path, shifts):
    own = measured()._replace(shifts=shifts)
    entry.write(tmp_path / entry.FILE, own)
    again = entry.read(tmp_path / entry.FILE, torch.device("cpu"))
    for left, right in zip((*again.known, *again[1:3]), (*own.known, *own[1:3]), strict=True):
        assert torch.equal(left, right)
    assert again.shifts is shifts is None or torch.equal(again.shifts, shifts)


def test_who_is_told_a_class_has_its_mean_and_who_is_told_none_that_of_all():
    own = measured()
    shifts = torch.cat([torch.ones(1, 2, 4), 2 * torch.ones(1, 2, 4), torch.zeros(1, 2, 4)])
    told = own._replace(shifts=shifts).told(torch.tensor([1, 2, 0]))
    torch.testing.assert_close(told.mean - own.known.mean, shifts[[1, 2, 0]])
    assert told[1:] == own.known[1:]
    assert own.told(None) is own.known


@pytest.mark.parametrize(
    "damage",
    [
        {"mean": torch.zeros(3)},
        {"basis": torch.zeros(2, 2, 4)},
        {"errors": torch.zeros(2, 3)},
        {"rest": torch.tensor(torch.nan)},
        {"more": torch.zeros(1)},
        {"shifts": torch.zeros(3, 4)},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_what_does_not_fit_is_refused(tmp_path, damage):
    file = tmp_path / entry.FILE
    entry.write(file, measured())
    checkpoint.write_tensors(file, {**checkpoint.read_tensors(file), **damage})
    with pytest.raises(CorruptError, match="train it again"):
        entry.read(file, torch.device("cpu"))

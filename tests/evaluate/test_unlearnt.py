"""Convolutions with random weights: what they cost, and that they see what they are said to."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from atoll.evaluate import unlearnt
from atoll.evaluate.unlearnt import Unlearnt

SHAPES = [(1, 28, 28), (3, 32, 32), (2, 64), (4, 4, 4), (3, 8, 12, 12), (1, 1, 7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_everybody_sees_the_same_of_every_kind_of_sample(shape):
    x_0 = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    rows = Unlearnt(shape)(x_0)
    assert rows.shape[0] == 5 and rows.isfinite().all() and rows.std() > 0
    assert torch.allclose(rows, Unlearnt(shape)(x_0))
    assert torch.allclose(rows[2:3], Unlearnt(shape)(x_0[2:3]), atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_they_cost_is_what_is_counted(shape):
    see, x_0 = Unlearnt(shape), torch.randn(2, *shape)
    with FlopCounterMode(display=False) as counter:
        see(x_0)
    assert counter.get_total_flops() == 2 * unlearnt.flops(shape)


def test_a_layer_is_a_convolution_that_keeps_the_size_of_what_it_sees():
    """The first layer by hand: weights of variance 2 / inputs, as half of what they make is cut off."""
    see = Unlearnt((3, 8, 8))
    x_0 = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(32, 3, 3, 3, generator=torch.Generator().manual_seed(0)) * math.sqrt(2 / 27)
    first = F.avg_pool2d(F.conv2d(x_0, weight, padding=1).relu(), 2)
    assert torch.allclose(see(x_0)[:, : 32 * 4], F.avg_pool2d(first, 2).flatten(1), atol=1e-5)


def test_large_pictures_cost_no_more_than_small_ones():
    assert unlearnt.flops((3, 512, 512)) == unlearnt.flops((3, 64, 64))
    assert Unlearnt((3, 100, 70))(torch.zeros(2, 3, 100, 70)).shape == (2, 4 * (32 + 64 + 64))


def test_pictures_in_bytes_or_halves_are_seen_as_numbers():
    x_0 = torch.randint(0, 2, (4, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    assert torch.equal(Unlearnt((1, 8, 8))(x_0.to(torch.uint8)), Unlearnt((1, 8, 8))(x_0.half()))


@pytest.mark.parametrize("sides", [[12], [12, 8], [6, 8, 4]])
@pytest.mark.parametrize("parts", [1, 2, 3, 1.5])
def test_coarser_grids_are_of_means_however_they_are_taken(sides, parts):
    x = torch.randn(3, 2, *sides, generator=torch.Generator().manual_seed(0))
    coarse = [int(side / parts) for side in sides]
    expected = unlearnt.SHRINK[len(sides)](x, coarse)
    torch.testing.assert_close(unlearnt.shrunk(x, coarse), expected, rtol=1e-6, atol=1e-6)

import numpy as np
import pytest
import torch

from atoll.evaluate import matched


def rows(seed):
    return torch.randn(20, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_correlations_are_pearsons():
    x, y = rows(0), rows(1)
    expected = [
        np.corrcoef(a.flatten(), b.flatten())[0, 1] for a, b in zip(x.numpy(), y.numpy(), strict=True)
    ]
    assert matched.correlations(x, y).tolist() == pytest.approx(expected)


def test_the_same_noise_is_told_from_strangers():
    x = rows(0)
    found = matched.alike(x, 2 * x + 3 + 0.1 * rows(1), 20)
    assert found["matched"]["value"] > 0.95
    assert abs(found["strangers"]["value"]) < 0.2
    assert found["matched"]["num"] == 20


def test_a_constant_picture_has_no_correlation():
    assert matched.correlations(torch.zeros(1, 4), torch.rand(1, 4)).item() == 0

import numpy as np
import pytest
import torch

from atoll.components import rows
from atoll.config import ComponentConfig
from atoll.errors import DataError


def samples(count=200, dims=6, seed=0):
    return torch.randn(count, 1, dims, generator=torch.Generator().manual_seed(seed)).clamp(-1, 1)


def test_rows_are_means_of_many_samples_each():
    x = samples()
    made = rows.of_samples(x, None, 0, ComponentConfig(prototypes=8))
    assert float(made.sizes.sum()) == 200
    assert float(made.sizes.min()) >= rows.LEAST
    whole = (made.means * made.sizes[:, None]).sum(0) / 200
    assert torch.allclose(whole, x.flatten(1).mean(0), atol=1e-5)


def test_a_lone_sample_far_away_gets_no_row_of_its_own():
    x = torch.cat([samples(), torch.full((1, 1, 6), 50.0)])
    made = rows.of_samples(x, None, 0, ComponentConfig(prototypes=8))
    assert float(made.sizes.min()) >= rows.LEAST
    assert float(made.means.max()) < 10


def test_copies_of_one_sample_are_one():
    """A mean of copies would be the sample."""
    x = torch.cat([samples(40), samples(1, seed=9).expand(100, -1, -1)])
    made = rows.of_samples(x, None, 0, ComponentConfig(prototypes=8))
    assert float(made.sizes.sum()) == 41
    with pytest.raises(DataError, match="1 different samples are too few"):
        rows.of_samples(samples(1).expand(100, -1, -1), None, 0, ComponentConfig())


def test_classes_are_counted_by_row():
    label = torch.arange(200) % 4 - 1  # every fourth has none
    made = rows.of_samples(samples(), label, 3, ComponentConfig(prototypes=4))
    assert made.classes.sum(0).tolist() == [50, 50, 50]
    assert bool((made.classes.sum(1) <= made.sizes).all())


def test_private_rows_are_one_for_each_class_and_never_the_same_twice():
    label = torch.arange(200) % 2
    config = ComponentConfig(epsilon=1.0)
    one, two = (rows.of_samples(samples(), label, 2, config) for _ in range(2))
    assert one.means.shape == (2, 6)
    assert not torch.equal(one.means, two.means)  # noise that nobody can make again
    assert float(one.sizes.min()) > 0
    assert rows.of_samples(samples(), None, 0, config).means.shape == (1, 6)


def test_rows_do_not_depend_on_chance():
    one, two = (rows.of_samples(samples(), None, 0, ComponentConfig(), seed=3) for _ in range(2))
    assert np.array_equal(one.means, two.means)

import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.flow import path


def test_ends_are_data_and_noise():
    x_0, noise = torch.randn(2, 3, 4, 5)
    assert torch.equal(path.point(x_0, noise, torch.zeros(3)), x_0)
    assert torch.allclose(path.point(x_0, noise, torch.ones(3)), noise)


@given(st.floats(0.01, 0.99))
def test_velocity_is_the_finite_difference_of_the_path(t):
    g = torch.Generator().manual_seed(0)
    x_0, noise = torch.randn(2, 4, 2, 3, generator=g, dtype=torch.float64)
    h = 1e-6
    ahead, behind = (path.point(x_0, noise, torch.full((4,), t + d, dtype=torch.float64)) for d in (h, -h))
    torch.testing.assert_close((ahead - behind) / (2 * h), path.velocity(x_0, noise), atol=1e-8, rtol=0)


def test_every_sample_has_its_own_time():
    x_0, noise = torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2)
    x_t = path.point(x_0, noise, torch.tensor([0.25, 0.75]))
    assert x_t[0].unique().item() == 0.25
    assert x_t[1].unique().item() == 0.75

"""Prototypes from a file that nobody trusts, and the router that takes them in."""

import pytest
import torch
from safetensors.torch import save_file

from atoll.errors import CorruptError
from atoll.models.prototypes import Prototypes, Rows
from atoll.sampling import grown
from atoll.sampling.grown import Grown
from tests.analytic import MixtureRouter, mixture_of


def rows_of(data, k):
    """The exact prototypes of one cluster of a mixture."""
    means = data.means[data.cluster == k].float()
    return Rows(means, torch.full((len(means),), data.width**2), torch.ones(len(means)))


def test_a_router_that_grew_is_the_one_that_knew_all_along():
    """The learnt router knows two clusters, prototypes the third: together the exact posterior."""
    data = mixture_of(3, 4, 5)
    two = mixture_of(3, 4, 5)
    known = torch.arange(8)
    two = type(two)(data.means[known], data.width, data.cluster[known], 2)
    between = Prototypes([rows_of(data, k) for k in range(3)], [0, 0, 1], data.priors.tolist())
    router = Grown(between, MixtureRouter(two), [0, 1], [2])
    g = torch.Generator().manual_seed(0)
    for t in (0.1, 0.5, 0.9):
        x_t, times = torch.randn(16, 5, generator=g), torch.full((16,), t)
        exact = data.posterior(x_t.double(), 1 - times.double(), times.double())
        assert torch.allclose(router(x_t, times).softmax(1).double(), exact, atol=1e-5)


def test_without_a_learnt_router_prototypes_know_all():
    data = mixture_of(3, 4, 5)
    between = Prototypes([rows_of(data, k) for k in range(3)], [0, 1, 2], data.priors.tolist())
    x_t, t = torch.randn(16, 5, generator=torch.Generator().manual_seed(0)), torch.full((16,), 0.4)
    exact = data.posterior(x_t.double(), 1 - t.double(), t.double())
    assert torch.allclose(Grown(between, None, [0, 1], [2])(x_t, t).softmax(1).double(), exact, atol=1e-5)


def test_numbers_of_parts_that_are_gone_have_no_weight():
    data = mixture_of(2, 2, 3)
    between = Prototypes([rows_of(data, k) for k in range(2)], [0, 1], [0.5, 0.5])
    p = Grown(between, None, [0], [3])(torch.randn(4, 3), torch.full((4,), 0.5)).softmax(1)
    assert p.shape == (4, 4)
    assert torch.equal(p[:, 1:3], torch.zeros(4, 2))
    assert torch.allclose(p.sum(1), torch.ones(4))


def test_a_class_is_told_by_how_often_prototypes_have_it():
    """At t = 1 only counts speak: n_kc / n_c."""
    counts = torch.tensor([[30.0, 10.0], [0.0, 20.0]])
    parts = [
        Rows(torch.zeros(1, 2), torch.ones(1), counts[k].sum().view(1), counts[k][None]) for k in range(2)
    ]
    between = Prototypes(parts, [0, 1], [40.0, 20.0])
    x, t = torch.randn(3, 2), torch.ones(3)
    p = Grown(between, None, [0, 1], [])(x, t, torch.tensor([0, 1, 2])).softmax(1)
    assert torch.allclose(p[0], torch.tensor([1.0, 0.0]), atol=1e-3)
    assert torch.allclose(p[1], torch.tensor([1 / 3, 2 / 3]), atol=1e-3)
    assert torch.allclose(p[2], torch.tensor([2 / 3, 1 / 3]), atol=1e-3)  # no class is told


def test_temperatures_act_in_their_part_of_the_time():
    data = mixture_of(2, 2, 3)
    between = Prototypes([rows_of(data, k) for k in range(2)], [0, 1], [0.5, 0.5])
    x, t = torch.randn(3, 3), torch.tensor([0.0, 0.6, 1.0])
    plain = between(x, t)
    cooled = between.calibrated([0.5, 2.0])(x, t)
    assert torch.allclose(cooled, plain * torch.tensor([[0.5], [2.0], [2.0]]).double())


def written(path, **changes):
    tensors = {"means": torch.zeros(3, 4), "variances": torch.ones(3), "sizes": torch.ones(3)}
    tensors = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
    save_file(tensors, path)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"means": torch.zeros(3, 5)},
        {"means": torch.full((3, 4), torch.nan)},
        {"means": torch.zeros(3, 4, dtype=torch.float64)},
        {"means": torch.zeros(3, 4, dtype=torch.int32)},
        {"means": torch.zeros(())},
        {"means": None},
        {"variances": torch.tensor([1.0, -1.0, 1.0])},
        {"variances": torch.tensor([1.0, torch.inf, 1.0])},
        {"sizes": torch.zeros(3)},
        {"sizes": torch.ones(2)},
        {"classes": torch.ones(3, 2)},
        {"another": torch.ones(3)},
        {
            "means": torch.zeros(300, 4),
            "variances": torch.ones(300),
            "sizes": torch.ones(300),
        },
    ],
)
def test_rows_that_are_none_are_refused(tmp_path, changes):
    with pytest.raises(CorruptError, match="router"):
        grown.read_rows(written(tmp_path / "router.safetensors", **changes), 4, 0)


def test_ten_gigabytes_of_rows_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "router.safetensors"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # sparse: takes no room
    with pytest.raises(CorruptError, match="more than 256 prototypes need"):
        grown.read_rows(path, 4, 0)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, b"\x10" + b"\x00" * 7 + b"{" * 16])
def test_bytes_that_are_no_rows_are_refused(tmp_path, content):
    path = tmp_path / "router.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptError, match="cannot be read"):
        grown.read_rows(path, 4, 0)

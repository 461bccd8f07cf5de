"""Distances against closed forms and against torchmetrics and scipy, which share no code with ours."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, spatial

from atoll.evaluate import distances


def gaussian(num: int, dims: int, seed: int, mean: float = 0.0, width: float = 1.0) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dims, dims, generator=torch.Generator().manual_seed(99)).double() / dims**0.5
    rows = torch.randn(num, dims, generator=source).double()
    return mean + width * (rows + rows @ mixing)


def white(num: int, dims: int, seed: int) -> torch.Tensor:
    """Rows with exactly zero mean and unit covariance."""
    rows = torch.randn(num, dims, generator=torch.Generator().manual_seed(seed)).double()
    rows = rows - rows.mean(0)
    factor = torch.linalg.cholesky(rows.T.cov())
    return torch.linalg.solve_triangular(factor, rows.T, upper=False).T


@pytest.mark.parametrize(("mean", "width"), [(0.0, 1.0), (2.0, 1.0), (0.0, 3.0), (-1.5, 0.5)])
def test_frechet_of_gaussians_is_its_closed_form(mean, width):
    """Between N(0, 1) and N(m, s²) in d dimensions it is d m² + d (1 - s)²."""
    x = white(500, 5, 0)
    y = mean + width * white(700, 5, 1)
    assert distances.frechet(x, y) == pytest.approx(5 * mean**2 + 5 * (1 - width) ** 2, abs=1e-9)


def test_frechet_of_a_set_with_itself_is_nothing():
    x = gaussian(300, 64, 0).float()
    assert abs(distances.frechet(x, x)) < 1e-3


@pytest.mark.parametrize("dims", [3, 64])
def test_frechet_agrees_with_torchmetrics_and_scipy(dims):
    from torchmetrics.image.fid import _compute_fid

    x, y = gaussian(400, dims, 0), gaussian(600, dims, 1, mean=0.3, width=1.2)
    ours = distances.frechet(x, y)
    theirs = _compute_fid(x.mean(0), x.T.cov(), y.mean(0), y.T.cov())
    assert ours == pytest.approx(float(theirs), rel=1e-4)
    a, b = np.cov(x.numpy().T), np.cov(y.numpy().T)
    root = linalg.sqrtm(a @ b).real
    away = ((x.mean(0) - y.mean(0)) ** 2).sum().item()
    assert ours == pytest.approx(away + np.trace(a + b - 2 * root), rel=1e-4)


@pytest.mark.parametrize(("one", "other"), [(20, 30), (20, 200), (200, 30)])
def test_frechet_with_fewer_samples_than_features(one, other):
    """Covariances without full rank, where a plain matrix square root fails."""
    x, y = gaussian(one, 64, 0), gaussian(other, 64, 1)
    a, b = np.cov(x.numpy().T), np.cov(y.numpy().T)
    away = ((x.mean(0) - y.mean(0)) ** 2).sum().item()
    roots = np.sqrt(np.clip(np.linalg.eigvals(a @ b).real, 0, None)).sum()
    expected = away + np.trace(a) + np.trace(b) - 2 * roots
    assert distances.frechet(x, y) == pytest.approx(expected, rel=1e-4)
    by_moments = distances.Frechet(y).of_moments(*distances.moments(x))
    assert by_moments == pytest.approx(expected, rel=1e-4)


def test_kernel_agrees_with_torchmetrics():
    x, y = gaussian(200, 16, 0), gaussian(200, 16, 1, mean=0.2)
    from torchmetrics.image.kid import poly_mmd

    assert distances.kernel(x, y) == pytest.approx(float(poly_mmd(x, y)), rel=1e-4)


def test_kernel_of_unequal_numbers_by_hand():
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [0.0], [1.0]])
    k = [[(a * b + 1) ** 3 for b in (2.0, 0.0, 1.0)] for a in (0.0, 1.0)]
    within_x = (0 * 1 + 1) ** 3
    within_y = (1 + (2 * 1 + 1) ** 3 + 1) / 3
    assert distances.kernel(x, y) == pytest.approx(within_x + within_y - 2 * np.mean(k))


def test_kernel_is_unbiased_around_nothing_and_blocks_are_disjoint():
    x, y = gaussian(4000, 4, 0), gaussian(6000, 4, 1)
    blocks = distances.kernel_blocks(x, y)
    assert len(blocks) == 4
    assert abs(float(blocks.mean())) < 4 * float(blocks.std()) / math.sqrt(len(blocks))
    assert float(blocks[1]) == pytest.approx(distances.kernel(x[1000:2000], y[1500:3000]))


def test_few_samples_add_to_a_frechet_distance_and_not_to_a_kernel_distance():
    """N(0, I) and N(m, I): by |m|² apart, which few rows tell a kernel as well as many do."""
    dims, apart, trials = 8, 0.5, 60
    real = white(400, dims, 1)
    source = torch.Generator().manual_seed(2)
    measured: dict[int, list[tuple[float, float]]] = {20: [], 320: []}
    for num, each in measured.items():
        for _ in range(trials):
            rows = torch.randn(num, dims, generator=source).double() + apart / dims**0.5
            each.append((distances.frechet(rows, real), distances.kernel(rows, real)))
    (few_frechet, few_kernel), (many_frechet, many_kernel) = (
        torch.tensor(each, dtype=torch.float64).T for each in measured.values()
    )
    error = float((few_kernel.var() + many_kernel.var()).div(trials).sqrt())
    assert abs(float(few_kernel.mean() - many_kernel.mean())) < 4 * error
    assert float(few_frechet.mean()) > 3 * float(many_frechet.mean())
    assert apart**2 < float(many_frechet.mean()) < 2 * apart**2


def by_hand(rows, manifold, k):
    rows, manifold = rows.numpy(), manifold.numpy()
    tree = spatial.cKDTree(manifold)
    reach = tree.query(manifold, k + 1)[0][:, -1]
    far = spatial.distance.cdist(rows, manifold)
    return (far <= reach[None]).any(1)


@pytest.mark.parametrize("k", [1, 3])
def test_covered_agrees_with_scipy(k):
    x, y = gaussian(150, 3, 0), gaussian(200, 3, 1, mean=0.5)
    assert distances.covered(x, y, k).tolist() == by_hand(x, y, k).tolist()
    assert 0 < distances.covered(x, y, k).float().mean() < 1


def test_precision_and_recall_tell_apart_what_is_missing():
    """Samples of one of two modes: all of them are right, half of the data are not covered."""
    data = torch.cat([gaussian(200, 2, 0), 100 + gaussian(200, 2, 1)])
    samples = gaussian(200, 2, 2)
    assert distances.covered(samples, data).float().mean() > 0.9
    assert distances.covered(data, samples).float().mean() == pytest.approx(0.5, abs=0.05)


def test_copies_are_found():
    data = gaussian(100, 8, 0)
    new = gaussian(50, 8, 1)
    samples = torch.cat([data[:10] + 1e-4, new])
    found = distances.copies(samples, data)
    assert found[:10].all()
    assert not found[10:].any()


def test_data_are_not_copies_of_themselves_but_repetitions_are():
    data = gaussian(100, 8, 0)
    assert not distances.copies(data, data, own=True).any()
    repeated = torch.cat([data, data[:1] + 1e-6])
    assert distances.copies(repeated, repeated, own=True).nonzero()[:, 0].tolist() == [0, 100]


def test_divergence_is_between_nothing_and_one_bit():
    even = torch.tensor([5, 5])
    assert distances.divergence(even, even) == pytest.approx(0, abs=1e-12)
    assert distances.divergence(torch.tensor([1, 0]), torch.tensor([0, 7])) == pytest.approx(1)
    theirs = spatial.distance.jensenshannon([0.7, 0.2, 0.1], [0.1, 0.3, 0.6], base=2) ** 2
    ours = distances.divergence(torch.tensor([7.0, 2, 1]), torch.tensor([1.0, 3, 6]))
    assert ours == pytest.approx(theirs, rel=1e-9)


@given(st.integers(0, 30), st.integers(1, 9))
def test_parts_are_all_rows_in_their_order(num, size):
    parts = list(distances.in_parts(torch.arange(num), size))
    assert [row for part in parts for row in part.tolist()] == list(range(num))
    assert all(len(part) == size for part in parts[:-1])
    assert len(parts) == -(-num // size)


@given(st.integers(0, 50))
def test_frechet_does_not_see_how_features_are_turned_or_moved(seed):
    source = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=source).double()).Q
    x, y = gaussian(40, 4, seed), gaussian(50, 4, seed + 1, mean=0.5, width=1.3)
    expected = distances.frechet(x, y)
    assert distances.frechet(x @ turn + 3, y @ turn + 3) == pytest.approx(expected, rel=1e-6)
    assert distances.frechet(y, x) == pytest.approx(expected, rel=1e-6)
    assert distances.frechet(2 * x, 2 * y) == pytest.approx(4 * expected, rel=1e-6)


@pytest.mark.parametrize(
    ("left", "right", "sizes"),
    [
        (2500, 9000, [(625, 2000)] * 4),
        (100, 100, [(25, 25)] * 4),
        (5, 7, [(2, 3)] * 2),
        (3, 3, [(3, 3)]),
    ],
)
def test_blocks_use_few_rows_as_well_as_many(left, right, sizes, monkeypatch):
    """Never fewer than two rows, of which a kernel distance has no within; four blocks where that allows."""
    seen = []

    def kernel(x, y):
        seen.append((len(x), len(y)))
        return 0.0

    monkeypatch.setattr(distances, "kernel", kernel)
    distances.kernel_blocks(torch.zeros(left, 1), torch.zeros(right, 1))
    assert seen == sizes


def test_a_copy_is_nearer_than_a_third():
    data = torch.tensor([[0.0], [4.0], [100.0]])
    samples = torch.tensor([[0.9], [1.1], [3.2], [2.0]])  # 0.9 < 3.1 / 3, but 1.1 > 2.9 / 3
    assert distances.copies(samples, data).tolist() == [True, False, True, False]


def test_rows_on_the_rim_of_a_manifold_belong_to_it():
    manifold = torch.tensor([[0.0], [1.0], [3.0]])
    rows = torch.tensor([[-1.0], [-1.1], [5.0], [5.1]])
    assert distances.covered(rows, manifold, 1).tolist() == [True, False, True, False]
    # a neighbour too many is the farthest there is
    assert distances.covered(torch.tensor([[-2.9], [6.1]]), manifold, 9).tolist() == [True, False]

"""Grouping against what can be worked out by hand or by brute force."""

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.data import kmeans
from atoll.data.kmeans import Rows


def blobs(
    sizes: list[int], spread: float = 0.05, seed: int = 0, dimensions: int = 6
) -> tuple[Rows, np.ndarray]:
    """Well separated groups on the unit sphere, in random order, and the group of each row."""
    random = np.random.default_rng(seed)
    group = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = np.eye(len(sizes), dimensions)[group] + spread * random.normal(size=(len(group), dimensions))
    return kmeans.normalise(x), group


def brute_force(x: Rows, centres: Rows, coarse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cluster and margin of each row, in double precision, row by row."""
    distance = np.sqrt(((x[:, None].astype(float) - centres[None].astype(float)) ** 2).sum(axis=2))
    each = np.stack([distance[:, coarse == k].min(axis=1) for k in range(coarse.max() + 1)], axis=1)
    ordered = np.sort(each, axis=1)
    return each.argmin(axis=1), ordered[:, 1] - ordered[:, 0]


def test_rows_get_length_one_and_zeros_stay() -> None:
    np.testing.assert_allclose(kmeans.normalise(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0, 0]])


def test_principal_components_are_those_of_the_singular_values() -> None:
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32) * [5, 4, 3, 2, 1] + 7
    x = x.astype(np.float32)
    projection = kmeans.principal(x, 3)
    projected = x @ projection[:-1] + projection[-1]
    singular = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)[:3]
    np.testing.assert_allclose(np.linalg.norm(projected, axis=0), singular, rtol=1e-3)
    np.testing.assert_allclose(projected.mean(axis=0), 0, atol=1e-4)


def test_assignment_and_margin_equal_brute_force() -> None:
    random = np.random.default_rng(1)
    x, centres = (kmeans.normalise(random.normal(size=(count, 7))) for count in (500, 40))
    coarse = np.concatenate([np.arange(5), random.integers(0, 5, 35)])
    found = kmeans.assign(x, centres, coarse)
    cluster, margin = brute_force(x, centres, coarse)
    np.testing.assert_array_equal(found.cluster, cluster)
    np.testing.assert_allclose(found.margin, margin, atol=1e-5)


def test_near_ties_are_decided_exactly_whatever_the_company_and_threads() -> None:
    """Rows half-way between two centres: single precision alone would let rounding decide."""
    centres = kmeans.normalise(np.random.default_rng(2).normal(size=(64, 64)))
    pairs = np.stack(np.triu_indices(64, 1), axis=1)
    x = kmeans.normalise(centres[pairs[:, 0]] + centres[pairs[:, 1]])
    coarse = np.arange(64) % 16
    exact, _ = brute_force(x, centres, coarse)
    np.testing.assert_array_equal(kmeans.assign(x, centres, coarse).cluster, exact)
    np.testing.assert_array_equal(kmeans.assign(x[::-1], centres, coarse).cluster[::-1], exact)
    alone = [kmeans.assign(x[row : row + 1], centres, coarse).cluster[0] for row in range(0, len(x), 50)]
    np.testing.assert_array_equal(alone, exact[::50])
    torch.set_num_threads(2)
    np.testing.assert_array_equal(kmeans.assign(x, centres, coarse).cluster, exact)


def test_fine_centres_are_as_good_as_plain_lloyd_and_do_not_depend_on_threads() -> None:
    x, _ = blobs([400] * 10, spread=0.3, dimensions=16)
    before = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(1)
        centres = kmeans.fine_centres(x, 50, 10, seed=3)
        faiss.omp_set_num_threads(2)
        np.testing.assert_array_equal(kmeans.fine_centres(x, 50, 10, seed=3), centres)
    finally:
        faiss.omp_set_num_threads(before)
    plain = faiss.Kmeans(16, 50, niter=10, seed=3)
    plain.train(x)

    def inertia(found: Rows) -> float:
        return float(((x[:, None] - found[None]) ** 2).sum(axis=2).min(axis=1).sum())

    assert inertia(centres) <= inertia(plain.centroids) * 1.02


def test_centres_without_samples_are_left_out() -> None:
    x, _ = blobs([10, 10])
    centres = np.concatenate([x[:1], x[:1] * -1, x[1:2]])
    found = kmeans.used_centres(x, centres, 1)
    assert -x[0].tolist()[0] not in found[:, 0].tolist()
    np.testing.assert_array_equal(np.unique(kmeans.nearest(x, found)), np.arange(len(found)))


def test_too_few_centres_give_way_to_different_rows() -> None:
    x = np.repeat(np.eye(4, dtype=np.float32), [50, 1, 1, 1], axis=0)
    centres = np.repeat(x[:1], 6, axis=0)
    found = kmeans.used_centres(x, centres, least=4)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, np.eye(4).tolist()))


@pytest.mark.parametrize("balanced", [True, False])
def test_clear_groups_are_found(balanced: bool) -> None:
    centres, group = blobs([30, 30, 30, 30])
    found = kmeans.coarse_clusters(centres, np.ones(120), 4, balanced=balanced, seed=0)
    assert len({(a, b) for a, b in zip(found, group, strict=True)}) == 4


def test_balancing_evens_out_by_weight() -> None:
    centres, _ = blobs([100, 60, 20, 20], spread=0.2)
    weights = np.random.default_rng(0).integers(1, 30, 200)
    found = kmeans.coarse_clusters(centres, weights, 5, balanced=True, seed=0)
    load = np.bincount(found, weights)
    assert load.max() / load.min() <= (1 + kmeans.SLACK) / (1 - kmeans.SLACK)
    loose = np.bincount(kmeans.coarse_clusters(centres, weights, 5, balanced=False, seed=0), weights)
    assert loose.max() / loose.min() > 2


@settings(max_examples=25)
@given(
    count=st.integers(1, 60),
    clusters=st.integers(1, 12),
    balanced=st.booleans(),
    seed=st.integers(0, 2**40),
    equal=st.booleans(),
)
def test_no_coarse_cluster_is_empty(
    count: int, clusters: int, balanced: bool, seed: int, equal: bool
) -> None:
    count = max(count, clusters)
    random = np.random.default_rng(seed)
    centres = np.ones((count, 3), np.float32) if equal else random.normal(size=(count, 3)).astype(np.float32)
    weights = random.integers(1, 1000, count)
    found = kmeans.coarse_clusters(centres, weights, clusters, balanced=balanced, seed=seed)
    assert (np.bincount(found, minlength=clusters) > 0).all()
    assert len(found) == count


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([[5, 0], [0, 5]], 1.0),
        ([[5, 5], [5, 5]], 0.0),
        # By hand: H = ln 2 both, I = ln 2 - H(1/4) = ln 2 + (1/4) ln(1/4) + (3/4) ln(3/4).
        ([[3, 1], [1, 3]], 1 + (0.25 * np.log(0.25) + 0.75 * np.log(0.75)) / np.log(2)),
    ],
)
def test_mutual_information(table: list[list[int]], expected: float) -> None:
    assert kmeans.mutual_information(np.array(table)) == pytest.approx(expected, abs=1e-12)

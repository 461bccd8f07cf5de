"""The mathematics of grouping: fine centres, balanced coarse clusters of them, nearest assignment."""

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Ints = NDArray[np.int64]

SLACK = 0.1
"""How far from its fair share a balanced cluster may be, as a part of it."""
RESTARTS = 8
BLOCK = 8192
"""Rows whose distances are held at once."""


def normalise(x: NDArray[Any]) -> Rows:
    """Rows of length one; a row of zeros stays as it is."""
    rows = np.ascontiguousarray(x, dtype=np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Rows = rows / np.maximum(length, 1e-12)
    return unit


def principal(x: Rows, dimensions: int) -> tuple[Rows, Rows]:
    """Mean (1, d) and the first principal directions (d, dimensions), signs fixed."""
    mean = x.mean(axis=0, keepdims=True, dtype=np.float64)
    centred = x - mean
    _, directions = np.linalg.eigh(centred.T @ centred)
    basis = directions[:, ::-1][:, :dimensions]
    signs = np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(basis.shape[1])])
    return mean.astype(np.float32), np.ascontiguousarray(basis * signs, dtype=np.float32)


def fine_centres(x: Rows, count: int, iterations: int, seed: int) -> Rows:
    """`count` centres by Lloyd's algorithm, or fewer where some would have no samples."""
    means = faiss.Kmeans(
        x.shape[1],
        count,
        niter=iterations,
        seed=seed % 2**31,
        min_points_per_centroid=1,
        max_points_per_centroid=len(x),
    )
    means.train(x)
    centres = np.asarray(means.centroids)
    used = np.unique(nearest(x, centres)[0])
    return centres[used]


def farthest_points(x: Rows, count: int) -> Rows:
    """Up to `count` different rows, each the farthest from those before it."""
    chosen = [0]
    distance = ((x - x[0]) ** 2).sum(axis=1)
    while len(chosen) < count and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((x - x[chosen[-1]]) ** 2).sum(axis=1))
    return x[chosen]


def squared_distances(x: NDArray[Any], centres: NDArray[Any]) -> NDArray[Any]:
    """(rows, centres) squared Euclidean distances."""
    squares: NDArray[Any] = (x * x).sum(axis=1)[:, None] - 2 * x @ centres.T + (centres * centres).sum(axis=1)
    return squares.clip(min=0)


def nearest(x: Rows, centres: Rows) -> tuple[Ints, Rows]:
    """The nearest centre of every row and the squared distance to it."""
    index = np.empty(len(x), np.int64)
    distance = np.empty(len(x), np.float32)
    for start in range(0, len(x), BLOCK):
        block = slice(start, start + BLOCK)
        all_distances = squared_distances(x[block], centres)
        index[block] = all_distances.argmin(axis=1)
        distance[block] = all_distances.min(axis=1)
    return index, distance


def coarse_clusters(
    centres: Rows, weights: NDArray[Any], clusters: int, *, balanced: bool, seed: int
) -> Ints:
    """Which of `clusters` clusters each fine centre belongs to; none is empty.

    Weighted k-means over the centres; with `balanced`, every cluster is given about the same weight.
    """
    points, weights = centres.astype(np.float64), np.asarray(weights, np.float64)
    random = np.random.default_rng(seed)
    best: Ints | None = None
    best_cost = np.inf
    for _ in range(RESTARTS):
        assignment = _lloyd(points, weights, clusters, balanced, random)
        cost = _cost(points, weights, assignment, clusters)
        if cost < best_cost:
            best, best_cost = assignment, cost
    assert best is not None
    return best


def _lloyd(
    points: NDArray[Any], weights: NDArray[Any], clusters: int, balanced: bool, random: np.random.Generator
) -> Ints:
    means = _spread(points, weights, clusters, random)
    before: Ints | None = None
    prices = np.zeros(clusters)
    for _ in range(50):
        distances = squared_distances(points, means)
        if balanced:
            prices = _prices(distances, weights, prices)
        assignment: Ints = (distances + prices).argmin(axis=1)
        if balanced:
            _even_out(assignment, distances, weights)
        _fill_empty(assignment, distances, clusters)
        if before is not None and (assignment == before).all():
            break
        before = assignment
        means = _means(points, weights, assignment, clusters)
    return assignment


def _spread(
    points: NDArray[Any], weights: NDArray[Any], clusters: int, random: np.random.Generator
) -> NDArray[Any]:
    """First means by k-means++: each drawn by its squared distance to those before."""
    chosen = [int(random.choice(len(points), p=weights / weights.sum()))]
    distance = squared_distances(points, points[chosen]).min(axis=1)
    while len(chosen) < clusters:
        mass = distance * weights
        mass[chosen] = 0
        if mass.sum() <= 0:
            mass = np.ones(len(points))
            mass[chosen] = 0
        chosen.append(int(random.choice(len(points), p=mass / mass.sum())))
        distance = np.minimum(distance, squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _prices(distances: NDArray[Any], weights: NDArray[Any], prices: NDArray[Any]) -> NDArray[Any]:
    """What each cluster charges so that about the same weight prefers each (Sinkhorn's iteration)."""
    softness = max(float(distances.max() - distances.min()) / 200, 1e-9)
    share = weights / weights.sum()
    for _ in range(30):
        logits = -(distances + prices) / softness
        logits -= logits.max(axis=1, keepdims=True)
        chance = np.exp(logits)
        chance /= chance.sum(axis=1, keepdims=True)
        load = share @ chance * distances.shape[1]
        prices = prices + softness * np.log(np.maximum(load, 1e-6))
    return prices


def _even_out(assignment: Ints, distances: NDArray[Any], weights: NDArray[Any]) -> None:
    """Move the cheapest centres from overfull to underfull clusters until all are near their share."""
    clusters = distances.shape[1]
    fair = weights.sum() / clusters
    load = np.bincount(assignment, weights, clusters)
    for _ in range(len(weights)):
        gap = load / fair - 1
        if np.abs(gap).max() <= SLACK:
            return
        source, target = (gap.argmax(), None) if gap.max() >= -gap.min() else (None, gap.argmin())
        if source is not None:
            members = np.flatnonzero(assignment == source)
            move = _cheapest(members, np.arange(clusters), assignment, distances, weights, load)
        else:
            members = np.flatnonzero(assignment != target)
            move = _cheapest(members, np.array([target]), assignment, distances, weights, load)
        if move is None:
            return
        member, to = move
        load[assignment[member]] -= weights[member]
        load[to] += weights[member]
        assignment[member] = to


def _cheapest(
    members: Ints,
    targets: Ints,
    assignment: Ints,
    distances: NDArray[Any],
    weights: NDArray[Any],
    load: NDArray[Any],
) -> tuple[int, int] | None:
    """The move that costs least per weight among those that bring two loads closer together."""
    moved = weights[members, None]
    gain = (load[assignment[members], None] - moved) - load[targets][None]
    # The pair's sum of squares falls exactly if the giver stays above what the taker had.
    allowed = (gain > 0) & (targets[None] != assignment[members, None])
    if not allowed.any():
        return None
    cost = distances[members][:, targets] - distances[members, assignment[members]][:, None]
    cost = np.where(allowed, cost, np.inf)
    row, column = np.unravel_index(cost.argmin(), cost.shape)
    return int(members[row]), int(targets[column])


def _fill_empty(assignment: Ints, distances: NDArray[Any], clusters: int) -> None:
    """Give every empty cluster the nearest centre that its own cluster can spare."""
    counts = np.bincount(assignment, minlength=clusters)
    for cluster in np.flatnonzero(counts == 0):
        spare = np.flatnonzero(counts[assignment] > 1)
        member = spare[distances[spare, cluster].argmin()]
        counts[assignment[member]] -= 1
        assignment[member] = cluster
        counts[cluster] = 1


def _means(points: NDArray[Any], weights: NDArray[Any], assignment: Ints, clusters: int) -> NDArray[Any]:
    totals = np.zeros((clusters, points.shape[1]))
    np.add.at(totals, assignment, points * weights[:, None])
    return totals / np.bincount(assignment, weights, clusters)[:, None]


def _cost(points: NDArray[Any], weights: NDArray[Any], assignment: Ints, clusters: int) -> float:
    means = _means(points, weights, assignment, clusters)
    return float((((points - means[assignment]) ** 2).sum(axis=1) * weights).sum())

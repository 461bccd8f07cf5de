"""The mathematics of grouping: fine centres, balanced coarse clusters of them, nearest assignment."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Exact = NDArray[np.float64]
Ints = NDArray[np.int64]

SLACK = 0.18
"""How far from its fair share a balanced cluster may be, as a part of it."""
RESTARTS = 10
"""Of the coarse stage, which is small; the best is kept."""
ROUNDS = 50
"""At most, of each; most often ten are enough."""
BLOCK = 8192
"""Rows whose distances are held at once."""
DOUBT = 1e-5
"""Rows with a smaller margin than this are decided in double precision, where order does not matter."""


def normalise(x: NDArray[Any]) -> Rows:
    """Rows of length one; a row of zeros stays as it is."""
    rows = np.array(x, dtype=np.float32, order="C")
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))  # without a square of every value in memory
    rows /= np.maximum(length, 1e-12)[:, None]
    return rows


def principal(x: Rows, dimensions: int) -> Rows:
    """The map to the first principal components: (d + 1, dimensions), its last row the offset."""
    mean = x.mean(axis=0, dtype=np.float64)
    centred = (x - mean.astype(np.float32)).astype(np.float32)
    _, directions = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    basis = directions[:, ::-1][:, :dimensions]
    basis = basis * np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(basis.shape[1])])
    return np.concatenate([basis, -(mean @ basis)[None]]).astype(np.float32)


def fine_centres(x: Rows, count: int, iterations: int, seed: int) -> Rows:
    """`count` centres of rows in random order, or fewer where some would have no samples.

    Lloyd's algorithm: the first iterations see a quarter of the rows, which leads to the same place sooner.
    """
    start: Rows | None = None
    quarter = x[: len(x) // 4]
    if len(quarter) >= 16 * count:
        start = _faiss_centres(quarter, count, -(-iterations * 6 // 10), seed, None)
        iterations = -(-iterations // 2)
    return _faiss_centres(x, count, iterations, seed, start)


def _faiss_centres(x: Rows, count: int, iterations: int, seed: int, start: Rows | None) -> Rows:
    means = faiss.Kmeans(
        x.shape[1],
        count,
        niter=iterations,
        seed=seed % 2**31,
        min_points_per_centroid=1,
        max_points_per_centroid=len(x),
    )
    means.train(x, init_centroids=start)
    return np.asarray(means.centroids)


def used_centres(x: Rows, centres: Rows, least: int) -> Rows:
    """The centres that have samples; where these are fewer than `least`, different rows take their place."""
    counts = np.bincount(nearest(x, centres), minlength=len(centres))
    if np.count_nonzero(counts) < least:
        centres = farthest_rows(x, len(centres))
        counts = np.bincount(nearest(x, centres), minlength=len(centres))
    return centres[counts > 0]


def farthest_rows(x: Rows, count: int) -> Rows:
    """Up to `count` different rows, each the farthest from those before it."""
    chosen = [0]
    distance = ((x - x[0]) ** 2).sum(axis=1)
    while len(chosen) < count and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((x - x[chosen[-1]]) ** 2).sum(axis=1))
    return x[chosen]


def nearest(x: Rows, centres: Rows) -> Ints:
    """The nearest centre of every row."""
    return assign(x, centres, np.arange(len(centres))).cluster


@dataclass(frozen=True)
class Assigned:
    """Where rows belong, and how clearly."""

    cluster: Ints
    margin: Rows
    """How much farther the nearest centre of any other cluster is."""


def assign(x: Rows, centres: Rows, coarse: Ints) -> Assigned:
    """Every row to the cluster of its nearest centre."""
    order = np.argsort(coarse, kind="stable")
    borders = np.searchsorted(coarse[order], np.arange(coarse.max() + 2))
    columns = torch.from_numpy(np.ascontiguousarray(centres[order].T))
    offset = -(columns**2).sum(dim=0) / 2
    cluster, margin = np.empty(len(x), np.int64), np.empty(len(x), np.float32)
    for start in range(0, len(x), BLOCK):
        rows = torch.from_numpy(np.ascontiguousarray(x[start : start + BLOCK]))
        # |x - c|² = |x|² - 2 (x·c - |c|²/2): the nearest centre has the highest score.
        scores = torch.addmm(offset, rows, columns)
        best = _best_of_each(scores, borders)
        top = best.topk(min(2, best.shape[1]), dim=1)
        squares = ((rows**2).sum(dim=1, keepdim=True) - 2 * top.values).clamp(min=0)
        distances = squares.sqrt()
        cluster[start : start + BLOCK] = top.indices[:, 0].numpy()
        margin[start : start + BLOCK] = (distances[:, -1] - distances[:, 0]).numpy()
    _settle_doubt(x, centres, coarse, cluster, margin)
    return Assigned(cluster, margin)


def _best_of_each(scores: torch.Tensor, borders: Ints) -> torch.Tensor:
    """(rows, clusters): the highest score of each cluster's centres."""
    if len(borders) == scores.shape[1] + 1:
        return scores
    return torch.stack([scores[:, low:high].amax(dim=1) for low, high in pairwise(borders)], dim=1)


def _settle_doubt(x: Rows, centres: Rows, coarse: Ints, cluster: Ints, margin: Rows) -> None:
    """Decide near ties exactly: single precision depends on which rows happen to be multiplied together."""
    doubtful = np.flatnonzero(margin < DOUBT)
    if coarse.max() == 0 or len(doubtful) == 0:
        return
    exact = centres.astype(np.float64)
    rows, which = np.unique(x[doubtful], axis=0, return_inverse=True)  # doubt often comes from equal rows
    settled = [coarse[((exact - row) ** 2).sum(axis=1).argmin()] for row in rows.astype(np.float64)]
    cluster[doubtful] = np.array(settled)[which.reshape(-1)]


def coarse_clusters(
    centres: Rows, weights: NDArray[Any], clusters: int, *, balanced: bool, seed: int
) -> Ints:
    """Which of `clusters` clusters each fine centre belongs to; none is empty.

    Weighted k-means over the centres; with `balanced`, every cluster is given about the same weight.
    """
    points, mass = centres.astype(np.float64), np.asarray(weights, np.float64)
    random = np.random.default_rng(seed)
    results = [_lloyd(points, mass, clusters, balanced, random) for _ in range(RESTARTS)]
    return min(results, key=lambda result: _cost(points, mass, result, clusters))


def _lloyd(points: Exact, mass: Exact, clusters: int, balanced: bool, random: np.random.Generator) -> Ints:
    means = _spread(points, mass, clusters, random)
    before: Ints | None = None
    prices = np.zeros(clusters)
    for _ in range(ROUNDS):
        distances = squared_distances(points, means)
        if balanced:
            prices = _prices(distances, mass, prices)
        assignment: Ints = (distances + prices).argmin(axis=1)
        if balanced:
            _even_out(assignment, distances, mass)
        _fill_empty(assignment, distances)
        if before is not None and (assignment == before).all():
            break
        before = assignment
        means = _means(points, mass, assignment, clusters)
    return assignment


def squared_distances(x: Exact, centres: Exact) -> Exact:
    """(rows, centres) squared Euclidean distances."""
    squares: Exact = (x * x).sum(axis=1)[:, None] - 2 * x @ centres.T + (centres * centres).sum(axis=1)
    return squares.clip(min=0)


def _spread(points: Exact, mass: Exact, clusters: int, random: np.random.Generator) -> Exact:
    """First means by k-means++: each drawn by its squared distance to those before."""
    chosen = [int(random.choice(len(points), p=mass / mass.sum()))]
    distance = squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < clusters:
        chance = distance * mass
        chance[chosen] = 0
        if chance.sum() <= 0:
            chance = np.ones(len(points))
            chance[chosen] = 0
        chosen.append(int(random.choice(len(points), p=chance / chance.sum())))
        distance = np.minimum(distance, squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _prices(distances: Exact, mass: Exact, prices: Exact) -> Exact:
    """What each cluster charges, or pays, so that the mass that prefers it is near its fair share.

    Sinkhorn's iteration for optimal transport with bounds: only a cluster that would otherwise be too full
    has a price, and only one that would be too empty pays.
    """
    softness = max(float(distances.max() - distances.min()) / 200, 1e-9)
    share = mass / mass.sum()
    for _ in range(30):
        chance = -(distances + prices) / softness
        chance = np.exp(chance - chance.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        load = np.maximum(share @ chance * distances.shape[1], 1e-6)
        unpriced = load * np.exp(np.clip(prices / softness, -50, 50))
        prices = prices + softness * np.log(load / unpriced.clip(1 - SLACK, 1 + SLACK))
    return prices


def _even_out(assignment: Ints, distances: Exact, mass: Exact) -> None:
    """Move the cheapest centres out of the fullest cluster, or into the emptiest, until all are even."""
    clusters = distances.shape[1]
    fair = mass.sum() / clusters
    load: Exact = np.bincount(assignment, mass, clusters).astype(np.float64)
    for _ in range(2 * len(mass)):
        gap = load / fair - 1
        if np.abs(gap).max() <= SLACK:
            return
        if gap.max() >= -gap.min():
            move = _cheapest(
                np.flatnonzero(assignment == gap.argmax()),
                np.arange(clusters),
                assignment,
                distances,
                mass,
                load,
            )
        else:
            taker = int(gap.argmin())
            move = _cheapest(
                np.flatnonzero(assignment != taker), np.array([taker]), assignment, distances, mass, load
            )
        if move is None:
            return
        member, taker = move
        load[assignment[member]] -= mass[member]
        load[taker] += mass[member]
        assignment[member] = taker


def _cheapest(
    members: Ints, takers: Ints, assignment: Ints, distances: Exact, mass: Exact, load: Exact
) -> tuple[int, int] | None:
    """The move that costs least among those that bring two loads closer together."""
    own = assignment[members]
    # The pair's sum of squares falls exactly if the giver keeps more than the taker had.
    allowed = load[own][:, None] - mass[members][:, None] > load[takers][None]
    allowed &= takers[None] != own[:, None]
    if not allowed.any():
        return None
    cost = (distances[members][:, takers] - distances[members, own][:, None]) * mass[members][:, None]
    row, column = np.unravel_index(np.where(allowed, cost, np.inf).argmin(), cost.shape)
    return int(members[row]), int(takers[column])


def _fill_empty(assignment: Ints, distances: Exact) -> None:
    """Give every empty cluster the nearest centre that its own cluster can spare."""
    counts = np.bincount(assignment, minlength=distances.shape[1])
    for cluster in np.flatnonzero(counts == 0):
        spare = np.flatnonzero(counts[assignment] > 1)
        member = spare[distances[spare, cluster].argmin()]
        counts[assignment[member]] -= 1
        assignment[member] = cluster
        counts[cluster] = 1


def _means(points: Exact, mass: Exact, assignment: Ints, clusters: int) -> Exact:
    belongs = (assignment == np.arange(clusters)[:, None]) * mass
    means: Exact = belongs @ points / belongs.sum(axis=1, keepdims=True)
    return means


def _cost(points: Exact, mass: Exact, assignment: Ints, clusters: int) -> float:
    means = _means(points, mass, assignment, clusters)
    return float((((points - means[assignment]) ** 2).sum(axis=1) * mass).sum())


def mutual_information(table: NDArray[Any]) -> float:
    """Normalised mutual information of clusters and labels from the table of their counts, in [0, 1]."""
    joint = table / table.sum()
    rows, columns = joint.sum(axis=1), joint.sum(axis=0)
    there = joint > 0
    information = (joint[there] * np.log(joint[there] / np.outer(rows, columns)[there])).sum()
    entropies = [-(p[p > 0] * np.log(p[p > 0])).sum() for p in (rows, columns)]
    mean = (entropies[0] + entropies[1]) / 2
    return float(information / mean) if mean > 0 else 1.0

"""How far a set of samples is from the data, in the space of some features: rows in, a number out."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 1000
"""Rows of a block of the kernel distance, as in KID."""
ROWS = 4096
"""Rows whose distances to all others are held at once."""


def in_parts(rows: Tensor, size: int) -> Iterator[Tensor]:
    """Rows, so many at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


class Moments(NamedTuple):
    """Mean and covariance of features, all that the Fréchet distance knows of them."""

    mean: Tensor
    covariance: Tensor


def moments(features: Tensor) -> Moments:
    """Mean and unbiased covariance of rows, in double precision."""
    exact = features.double()
    return Moments(exact.mean(0), exact.T.cov())


class Frechet:
    """The Fréchet distance to one reference, whose square root is computed once.

    |μ₁ - μ₂|² + tr(Σ₁ + Σ₂ - 2 (Σ₁ Σ₂)^½) (Heusel et al. 2017, eq. 6). With Σ₂ = RᵀR the trace of the root is
    the sum of the roots of the eigenvalues of R Σ₁ Rᵀ, which is symmetric. Of fewer rows than features R is
    the rows themselves, and what has to be decomposed is as large as they are many.
    """

    def __init__(self, reference: Tensor) -> None:
        self._reference = reference
        self.mean, self.covariance = moments(reference)

    @functools.cached_property
    def _root(self) -> Tensor:
        if _few(self._reference):
            return _centred(self._reference)
        values, vectors = torch.linalg.eigh(self.covariance)
        return vectors * values.clamp(min=0).sqrt() @ vectors.T

    def __call__(self, features: Tensor) -> float:
        """The distance of rows of features."""
        if not _few(features):
            return self.of_moments(*moments(features))
        rows = _centred(features)
        return self._of(features.double().mean(0), rows.square().sum(), rows @ self.covariance @ rows.T)

    def of_moments(self, mean: Tensor, covariance: Tensor) -> float:
        """The distance of features with this mean and covariance."""
        return self._of(mean, covariance.trace(), self._root @ covariance @ self._root.T)

    def _of(self, mean: Tensor, trace: Tensor, product: Tensor) -> float:
        cross = torch.linalg.eigvalsh(product).clamp(min=0).sqrt().sum()
        away = (mean - self.mean).square().sum()
        return float(away + trace + self.covariance.trace() - 2 * cross)


def _few(features: Tensor) -> bool:
    return len(features) < features.shape[1]


def _centred(features: Tensor) -> Tensor:
    """Rows C with CᵀC their unbiased covariance."""
    exact = features.double()
    return (exact - exact.mean(0)) / (len(exact) - 1) ** 0.5


def frechet(left: Tensor, right: Tensor) -> float:
    """The Fréchet distance of two sets of rows."""
    return Frechet(right)(left)


def kernel(left: Tensor, right: Tensor) -> float:
    """The squared maximum mean discrepancy by the kernel (x·y / d + 1)³, unbiased (Bińkowski et al. 2018)."""
    x, y = left.double(), right.double()
    within = _off_diagonal_mean(_polynomial(x, x)) + _off_diagonal_mean(_polynomial(y, y))
    return float(within - 2 * _polynomial(x, y).mean())


def _polynomial(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3


def _off_diagonal_mean(matrix: Tensor) -> Tensor:
    rows = len(matrix)
    return (matrix.sum() - matrix.trace()) / (rows * (rows - 1))


def kernel_blocks(left: Tensor, right: Tensor, block: int = BLOCK) -> Tensor:
    """The kernel distance of disjoint blocks of rows, whose mean is unbiased too (Zaremba et al. 2013)."""
    count = max(1, min(len(left), len(right)) // block, min(4, min(len(left), len(right)) // 2))
    pairs = zip(_blocks(left, count, block), _blocks(right, count, block), strict=True)
    return torch.tensor([kernel(x, y) for x, y in pairs], dtype=torch.float64)


def _blocks(rows: Tensor, count: int, block: int) -> list[Tensor]:
    """As many disjoint blocks; larger than asked for where there are rows for it, but not by much."""
    size = min(len(rows) // count, 2 * block)
    return [rows[start * size : (start + 1) * size] for start in range(count)]


def covered(rows: Tensor, manifold: Tensor, neighbours: int = 3) -> Tensor:
    """Which rows lie in the manifold: nearer to one of its rows than that row's k-th neighbour is.

    Of samples in the manifold of the data the share is precision, of data in that of the samples it is recall
    (Kynkäänniemi et al. 2019, eq. 1, 2).
    """
    rows, manifold = rows.double(), manifold.double()
    reach = torch.cat(
        [
            torch.cdist(part, manifold).kthvalue(min(neighbours + 1, len(manifold)), dim=1).values
            for part in in_parts(manifold, ROWS)
        ]
    )
    return torch.cat([(torch.cdist(part, manifold) <= reach).any(1) for part in in_parts(rows, ROWS)])


def copies(samples: Tensor, data: Tensor, *, own: bool = False) -> Tensor:
    """Which samples are copies: nearer to one of the data than a third of the way to the second nearest.

    The criterion of Yoon et al. 2023 (§3), which needs no scale. With `own` the samples are themselves of the
    data, and are not their own neighbours.
    """
    data = data.flatten(1)
    flags = []
    for part in in_parts(samples.flatten(1), ROWS // 8):
        nearest = torch.cdist(part, data).topk(3 if own else 2, largest=False).values
        first, second = nearest[:, -2], nearest[:, -1]
        flags.append(first < second / 3)
    return torch.cat(flags)


def divergence(left: Tensor, right: Tensor) -> float:
    """The Jensen-Shannon divergence of two distributions, in bits: 0 if equal, 1 if disjoint (Lin 1991)."""
    p, q = left.double() / left.sum(), right.double() / right.sum()
    middle = (p + q) / 2
    return float((_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2)


def _relative_entropy(p: Tensor, q: Tensor) -> Tensor:
    return torch.special.xlogy(p, p / q.clamp(min=1e-300)).sum() / torch.log(torch.tensor(2.0).double())

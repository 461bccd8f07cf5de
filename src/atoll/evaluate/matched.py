"""Samples of two models from the same noise: how alike they are, against strangers."""

from typing import Any

from torch import Tensor

from atoll.evaluate.intervals import mean_of_rows


def alike(left: Tensor, right: Tensor, resamples: int) -> dict[str, Any]:
    """Pearson's correlation of the values of each pair, and beside it that of pairs with other noise."""
    return {
        "matched": mean_of_rows(correlations(left, right), resamples).facts(),
        "strangers": mean_of_rows(correlations(left, right.roll(1, 0)), resamples).facts(),
    }


def correlations(left: Tensor, right: Tensor) -> Tensor:
    """Pearson's correlation of each pair of rows."""
    x, y = (_centred(rows) for rows in (left, right))
    return (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1)).clamp(min=1e-12)


def _centred(rows: Tensor) -> Tensor:
    flat = rows.double().flatten(1).cpu()
    return flat - flat.mean(1, keepdim=True)

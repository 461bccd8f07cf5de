"""What parts say together: mean and spread of channels, and the map from latents to pixels."""

from collections.abc import Sequence

import numpy as np

from atoll.data.parts import Facts
from atoll.data.shaping import EIGHT_BITS


def statistics(
    facts: Sequence[Facts], channels: int, span: tuple[float, float] | None = None
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel; of pixels those that take them to [-1, 1]."""
    measured = [fact for fact in facts if fact.sums is not None]
    if span is not None or not measured:
        black, white = span or EIGHT_BITS
        return [(white + black) / 2] * channels, [(white - black) / 2] * channels
    count = sum(fact.values_per_channel for fact in measured)
    mean = np.sum([np.array(fact.sums) for fact in measured], axis=0) / count
    variance = np.sum([np.array(fact.squares) for fact in measured], axis=0) / count - mean**2
    std = np.sqrt(np.maximum(variance, 0))
    # A constant channel has nothing to scale.
    return mean.tolist(), np.where(std > 1e-6 * (1 + np.abs(mean)), std, 1.0).tolist()


def preview(facts: Sequence[Facts]) -> list[list[float]] | None:
    """The linear map from latents (and a one) to the pixels that they stand for, by least squares."""
    known = [fact.preview for fact in facts if fact.preview is not None]
    if not known:
        return None
    left = np.sum([np.array(equations[0]) for equations in known], axis=0)
    right = np.sum([np.array(equations[1]) for equations in known], axis=0)
    weights: list[list[float]] = np.linalg.lstsq(left, right, rcond=None)[0].tolist()
    return weights

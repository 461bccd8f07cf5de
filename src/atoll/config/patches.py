"""How a grid of samples is cut into tokens: the usual patch, and whether one fits."""

from collections.abc import Sequence

SERIES_TOKENS = 64
"""A series is cut into about so many tokens."""
SPACE = 2
"""Samples per token along an axis of space, as DiT's finest networks have it."""


def usual(shape: Sequence[int]) -> tuple[int, ...]:
    """The patch for samples of this shape, (channels, *grid), where nobody names one."""
    grid = tuple(shape)[1:]
    if len(grid) == 1:
        return (_divisor(grid[0], max(1, grid[0] // SERIES_TOKENS)),)
    wanted = (*(1 for _ in grid[:-2]), SPACE, SPACE)  # every frame of a video has tokens of its own
    return tuple(_divisor(size, step) for size, step in zip(grid, wanted, strict=True))


def nearest(patch: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The patch that is most like this one and fits."""
    grid = tuple(shape)[1:]
    if len(patch) != len(grid):
        return usual(shape)
    return tuple(_divisor(size, step) for size, step in zip(grid, patch, strict=True))


def fits(patch: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether it has an entry for each axis of the grid, and each divides its axis."""
    grid = tuple(shape)[1:]
    return len(patch) == len(grid) and not any(size % step for size, step in zip(grid, patch, strict=True))


def misfit(patch: Sequence[int], shape: Sequence[int], key: str) -> str:
    """What is wrong with a patch, and what to set instead."""
    grid = tuple(shape)[1:]
    remedy = f"{list(nearest(patch, shape))} would fit, or leave it out"
    samples = f"samples of {' x '.join(map(str, shape))} (channels, then the grid)"
    if len(patch) != len(grid):
        has, need = _axes(len(patch)), _axes(len(grid))
        return f"{key} = {list(patch)} is for {has}, but {samples} have {need}: {remedy}"
    return f"{key} = {list(patch)} does not divide {samples}: {remedy}"


def _axes(number: int) -> str:
    return f"{number} axis" if number == 1 else f"{number} axes"


def _divisor(size: int, wanted: int) -> int:
    """The divisor nearest to the wanted one, the larger of two; never many times as large."""
    near = [step for step in range(1, size + 1) if size % step == 0 and step <= 4 * wanted]
    return min(near, key=lambda step: (abs(step - wanted), -step))

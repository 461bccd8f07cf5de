"""Who is asked about which rows: each expert about those alone in which it has weight, a batch at a time."""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.flow.mixture import Rows


class Group(NamedTuple):
    """One expert and rows that it is asked about together."""

    expert: int
    rows: Rows


Bundle = tuple[Group, ...]
"""Questions that one pass answers."""


def bundles(
    groups: Sequence[Group], kin: Sequence[Hashable | None], size: int, most: int | None = None
) -> list[Bundle]:
    """Questions to adapters of one base together, at most so many rows at once; all others alone.

    `kin` says of each expert what it has in common with others; `size` is the rows of the whole batch.
    """
    bundled: list[Bundle] = []
    taken = 0
    for group in groups:
        rows = rows_of(group, size)
        own = kin[group.expert] if kin else None
        alike = bundled and own is not None and kin[bundled[-1][-1].expert] == own
        if alike and taken + rows <= (most or size):
            bundled[-1] = (*bundled[-1], group)
            taken += rows
        else:
            bundled.append((group,))
            taken = rows
    # The largest first: whoever is asked last keeps the others waiting for the shortest time
    return sorted(bundled, key=lambda bundle: -sum(rows_of(group, size) for group in bundle))


def rows_of(group: Group, size: int) -> int:
    """How many rows of a batch of this size a question is about."""
    return len(range(*group.rows.indices(size))) if isinstance(group.rows, slice) else len(group.rows)


def groups(weights: Float[Tensor, "batch experts"], most: int | None = None) -> list[Group]:
    """Each expert that has weight with its rows, at most so many at once.

    The device is waited for once: how many rows each expert has decides what is computed next.
    """
    active = weights.T != 0
    counts = active.sum(1).tolist()
    size = len(weights)
    # True first, in order: the places of all that is not zero, without asking the device how many there are
    order = (~active).flatten().to(torch.uint8).argsort(stable=True)[: sum(counts)] % size
    batches: list[Group] = []
    for expert, rows in enumerate(torch.split(order, counts)):
        if len(rows) == size:
            batches += everyone(expert, size, most)
        elif len(rows):
            # 33 rows, at most 32 at once, are 17 and 16: one row alone would take nearly as long as 16
            batches += [Group(expert, some) for some in rows.tensor_split(-(-len(rows) // (most or size)))]
    return batches


def everyone(expert: int, size: int, most: int | None = None) -> list[Group]:
    """One expert asked about all rows, at most so many at once; nothing is waited for."""
    return [Group(expert, some) for some in slices(size, most or size)]


def slices(size: int, most: int) -> Iterator[slice]:
    """So many rows, at most so many at once; all of them are one slice of everything."""
    if most >= size:
        yield slice(None)
        return
    for start in range(0, size, most):
        yield slice(start, min(start + most, size))

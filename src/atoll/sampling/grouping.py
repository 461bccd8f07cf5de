"""Who is asked about which rows: each expert about those alone in which it has weight, a batch at a time."""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from atoll.flow.mixture import Rows
from atoll.models.siblings import Build


class Group(NamedTuple):
    """One expert and rows that it is asked about together."""

    expert: int
    rows: Rows


Bundle = tuple[Group, ...]
"""Questions that one pass answers."""


def bundles(
    groups: Sequence[Group],
    kin: Sequence[Hashable | None],
    size: int,
    most: int | None = None,
    few: int = 0,
) -> list[Bundle]:
    """Questions to experts that are alike together, at most so many rows at once; all others alone.

    `kin` says of each expert what it has in common with others; `size` is the rows of the whole batch.
    Networks of one build go together with at most `few` rows each: with more they pay alone. A question
    that would be too much is cut, so that whoever answers has as much to do as anybody else.
    """
    bundled: list[Bundle] = []
    places: dict[Hashable, tuple[int, int]] = {}
    for whole in groups:
        own = kin[whole.expert] if kin else None
        if own is None or (isinstance(own, Build) and rows_of(whole, size) > few):
            bundled.append((whole,))
            continue
        place, room = places.get(own, (0, 0))
        first, rest = _cut(whole, room, size)
        if first is not None:
            bundled[place] = (*bundled[place], first)
            places[own] = place, room - rows_of(first, size)
        if rest is not None:
            places[own] = len(bundled), (most or size) - rows_of(rest, size)
            bundled.append((rest,))
    # The largest first: whoever is asked last keeps the others waiting for the shortest time
    return sorted(bundled, key=lambda bundle: -sum(rows_of(group, size) for group in bundle))


def _cut(group: Group, room: int, size: int) -> tuple[Group | None, Group | None]:
    """As many rows of a question as there is room for, and the others."""
    rows = rows_of(group, size)
    if rows <= room:
        return group, None
    if room <= 0 or isinstance(group.rows, slice):
        return None, group
    return Group(group.expert, group.rows[:room]), Group(group.expert, group.rows[room:])


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

"""Real samples to compare with: drawn from `data/` in an order that is a function of their ids."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.columns import fixed_bytes
from atoll.data.parts import Parts
from atoll.data.rules import lottery
from atoll.data.values import to_values
from atoll.runs import Run
from atoll.runs.records import DataContents, SampleFormat
from atoll.sampling.gallery import to_pixels

SEED = 3
"""Of the draw; another than those of training and partition."""


@dataclass(frozen=True)
class Real:
    """Some of the data, in random order."""

    stored: Tensor
    """(n, channels, *grid) as they rest."""
    labels: list[str | None]
    captions: list[str | None]
    contents: DataContents
    """What is known of them all."""
    name: str
    """A digest of which these are."""

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def classes(self) -> Tensor | None:
        """The number of each sample's class, -1 where it has none; None where nobody has one."""
        numbers = {name: number for number, name in enumerate(self.contents.class_names)}
        if not numbers:
            return None
        return torch.tensor([-1 if label is None else numbers[label] for label in self.labels])


def draw(run: Run, count: int) -> Real:
    """At most so many of the run's samples; fewer are the first of more."""
    parts = Parts(run.data)
    chosen = [(parts.names[int(part)], int(row)) for _, part, row in _lowest(parts, count)]
    contents = parts.contents
    shape, dtype = contents.shape, np.dtype(contents.dtype)
    stored = np.empty((len(chosen), *shape), dtype)
    labels: list[str | None] = [None] * len(chosen)
    captions: list[str | None] = [None] * len(chosen)
    wanted: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for place, (name, row) in enumerate(chosen):
        group, within = divmod(row, contents.group)
        wanted.setdefault((name, group), []).append((place, within))
    for (name, group), rows in sorted(wanted.items()):
        table = parts.read_group(name, group)
        values = np.concatenate([fixed_bytes(chunk) for chunk in table["sample"].chunks])
        values = values.view(dtype).reshape(len(values), *shape)
        columns = table["label"].to_pylist(), table["caption"].to_pylist()
        for place, within in rows:
            stored[place] = values[within]
            labels[place], captions[place] = columns[0][within], columns[1][within]
    name = hashlib.sha256(f"{run.data.digest} {len(chosen)}".encode()).hexdigest()[:16]
    return Real(torch.from_numpy(stored), labels, captions, contents, name)


def _lowest(parts: Parts, count: int) -> NDArray[np.uint64]:
    """(ticket, part, row) of the samples with the lowest tickets, in order, from one part after another."""
    lowest = np.zeros((0, 3), np.uint64)
    for number, name in enumerate(parts.names):
        rows = np.flatnonzero(parts.kept(name))
        tickets = lottery(parts.ids(name)[rows], SEED)
        # Of this part no more than all that are wanted can be among them.
        nearest = np.argsort(tickets, kind="stable")[:count]
        places = np.full(len(nearest), number, np.uint64), rows[nearest].astype(np.uint64)
        lowest = np.concatenate([lowest, np.stack([tickets[nearest], *places], axis=1)])
        lowest = lowest[np.lexsort(lowest.T[::-1])[:count]]
    return lowest


def as_seen(x_0: Tensor, contents: SampleFormat) -> Tensor:
    """Samples as networks make them, in the values that are written and looked at."""
    if contents.autoencoder is not None:
        return torch.from_numpy(to_pixels(x_0, contents)).movedim(-1, 1)
    values = to_values(x_0, contents)
    if contents.kind == "image":
        values = (x_0.detach().to(torch.float32) + 1) * 127.5  # whatever the unit at rest
    elif contents.dtype != "uint8":
        return values
    return values.round().clamp(0, 255).to(torch.uint8)

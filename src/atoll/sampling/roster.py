"""Experts in waiting: at most so many on the device, the others on disk until they are needed."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import nn

Loader = Callable[[], nn.Module]


@runtime_checkable
class Experts(Protocol):
    """Experts by number: a list of them, or a roster."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int, /) -> nn.Module:
        """One of them, ready to be asked."""


class Roster:
    """A sequence of experts of which the last `resident` that were asked for are held.

    Weights are memory-mapped safetensors, so an expert that comes back is read from the page cache of the
    system while there is room for it, and from disk where there is none.
    """

    def __init__(
        self,
        loaders: Sequence[Loader],
        resident: int | None = None,
        files: Sequence[Path] = (),
        kin: Sequence[Hashable | None] = (),
        marks: Iterable[Hashable | None] = (),
    ) -> None:
        self._loaders = list(loaders)
        self._marks = list(marks) or [None] * len(self._loaders)
        self.kin = list(kin)
        """What each has in common with those that can be asked in one pass with it; None for nothing."""
        self._files = list(files)
        self._room = len(self._loaders) if resident is None else resident
        self._held: OrderedDict[int, nn.Module] = OrderedDict()
        self._lock = threading.Lock()
        self.loads = 0
        """How often an expert was loaded."""

    def __len__(self) -> int:
        return len(self._loaders)

    @property
    def room(self) -> int:
        """How many are held at once."""
        return self._room

    def __getitem__(self, index: int) -> nn.Module:
        """One expert, loaded if it is not held; the one not asked for longest makes room for it.

        Several threads may ask at once: each expert is loaded once, and one that has made room works on for
        whoever has it in hand.
        """
        with self._lock:
            if index in self._held:
                self._held.move_to_end(index)
                return self._held[index]
            while len(self._held) >= self._room:
                self._held.popitem(last=False)
            self.loads += 1
            self._held[index] = self._loaders[index]()
            return self._held[index]

    def take_over(self, before: "Roster") -> None:
        """Hold what another roster holds of the same marks, so that nothing is loaded twice."""
        with before._lock:
            held = {before._marks[k]: expert for k, expert in before._held.items() if before._marks[k]}
        with self._lock:
            self.loads = before.loads
            for index, mark in enumerate(self._marks):
                if mark in held and len(self._held) < self._room:
                    self._held[index] = held[mark]

    def holds(self, mark: Hashable) -> bool:
        """Whether an expert with this mark is held."""
        with self._lock:
            return mark is not None and any(self._marks[index] == mark for index in self._held)

    def replace(
        self, index: int, loader: Loader, file: Path, kin: Hashable | None, expert: nn.Module
    ) -> None:
        """Put another expert in the place of one; who has the old one in hand works on with it."""
        with self._lock:
            self._marks[index] = None
            self._loaders[index] = loader
            self._held.pop(index, None)
            if len(self._held) < self._room:
                self._held[index] = expert
            if self._files:
                self._files[index] = file
            if self.kin:
                self.kin[index] = kin

    def expect(self, index: int) -> threading.Thread | None:
        """Read the file of an expert who comes next into the system's cache, while another one works.

        The cache and not our memory, so that the promise of `resident` holds.
        """
        if index in self._held or not self._files:
            return None
        reading = threading.Thread(target=_read, args=(self._files[index],), daemon=True)
        reading.start()
        return reading


def _read(path: Path, piece: int = 1 << 20) -> None:
    """Everything in a file, once; one that cannot be read is for the loader to complain about."""
    try:
        with path.open("rb", buffering=0) as file:
            while file.read(piece):
                pass
    except OSError:
        return

"""A log as static files: tiles of 256 hashes, bundles of 256 entries, as https://c2sp.org/tlog-tiles says.

Whoever has the files can make any proof; nobody has to be asked.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from atoll.errors import CorruptError
from atoll.net import tree

WIDTH = 256
"""Hashes of a full tile, entries of a full bundle."""
LARGEST = 0xFFFF
"""Bytes of an entry: its length has two bytes in a bundle."""
CHECKPOINT = "checkpoint"

Fetch = Callable[[str], bytes | None]
"""Gives a file of the log by its name, None where there is none."""


def path(level: int | str, index: int, width: int = WIDTH) -> str:
    """The name of a tile; of a bundle if the level is `entries`."""
    digits = f"{index:03d}"
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    groups = [digits[start : start + 3] for start in range(0, len(digits), 3)]
    number = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
    return f"tile/{level}/{number}" + ("" if width == WIDTH else f".p/{width}")


def bundle(entries: Sequence[bytes]) -> bytes:
    """Entries, one behind the other, each after its length."""
    return b"".join(struct.pack(">H", len(entry)) + entry for entry in entries)


def entries_of(data: bytes) -> list[bytes]:
    """The entries of a bundle."""
    entries, at = [], 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if at + 2 > len(data) or end > len(data):
            raise CorruptError("a bundle of the log is cut off")
        entries.append(data[at + 2 : end])
        at = end
    return entries


def widths(size: int) -> Iterator[tuple[int, int, int]]:
    """Every tile of a tree as level, index and how many hashes it has."""
    level, count = 0, size
    while count:
        for index in range(-(-count // WIDTH)):
            yield level, index, min(WIDTH, count - index * WIDTH)
        level, count = level + 1, count // WIDTH


class Reader:
    """A log of a given size, off its files; what it says is to be checked against a signed root."""

    def __init__(self, fetch: Fetch, size: int) -> None:
        self._fetch, self.size = fetch, size
        self.tile = lru_cache(maxsize=1024)(self._tile)

    def entries(self, index: int) -> list[bytes]:
        """The entries of one bundle, as many as a log of this size has."""
        width = min(WIDTH, self.size - index * WIDTH)
        entries = entries_of(self._file("entries", index, width))
        if len(entries) < width:
            raise CorruptError(f"bundle {index} of the log has {len(entries)} entries, not {width}")
        return entries[:width]

    def all_entries(self) -> Iterator[bytes]:
        """Every entry in order."""
        for index in range(-(-self.size // WIDTH)):
            yield from self.entries(index)

    def entry(self, index: int) -> bytes:
        """One entry."""
        return self.entries(index // WIDTH)[index % WIDTH]

    def subtree(self, start: int, end: int) -> bytes:
        """The hash of a range of entries that a node of the tree covers."""
        height = (end - start).bit_length() - 1
        if end - start != 1 << height or start % (end - start):
            middle = start + tree.split(end - start)
            return tree.node_hash(self.subtree(start, middle), self.subtree(middle, end))
        level, inside = divmod(height, 8)
        first = (start >> height) << inside
        hashes = self.tile(level, first // WIDTH)
        part = hashes[first % WIDTH : first % WIDTH + (1 << inside)]
        return tree.root(part)

    def root(self) -> bytes:
        """The hash of the whole tree, off the tiles."""
        return self.subtree(0, self.size) if self.size else tree.EMPTY

    def inclusion(self, index: int) -> list[bytes]:
        """The proof that an entry is in the log."""
        return tree.hashes_of(tree.inclusion_ranges(index, self.size), self.subtree)

    def consistency(self, first: int) -> list[bytes]:
        """The proof that a log of `first` entries is the beginning of this one."""
        return tree.hashes_of(tree.consistency_ranges(first, self.size), self.subtree)

    def _tile(self, level: int, index: int) -> tuple[bytes, ...]:
        width = min(WIDTH, (self.size >> (8 * level)) - index * WIDTH)
        data = self._file(level, index, width)
        if len(data) % tree.SIZE or len(data) < width * tree.SIZE:
            raise CorruptError(f"tile {level}/{index} of the log is cut off")
        return tuple(data[at : at + tree.SIZE] for at in range(0, width * tree.SIZE, tree.SIZE))

    def _file(self, level: int | str, index: int, width: int) -> bytes:
        """A tile; one that has become full since may have replaced the part that it was."""
        data = self._fetch(path(level, index, width))
        if data is None and width < WIDTH:
            data = self._fetch(path(level, index))
        if data is None:
            raise CorruptError(f"{path(level, index, width)} of the log is missing")
        return data

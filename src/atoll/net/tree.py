"""The Merkle tree of a log, as RFC 6962 and RFC 9162 define it: hashes, proofs and their verification.

Every hash of the tree is that of a range of entries [start, end). A proof is a list of such ranges, and
whoever can hash ranges (off leaves, off tiles) can make it; checking one needs nothing but its hashes.
"""

import hashlib
from collections.abc import Callable, Sequence

EMPTY = hashlib.sha256(b"").digest()
"""The root of a log without entries."""
SIZE = 32
"""Bytes of a hash."""

Range = tuple[int, int]


def leaf_hash(entry: bytes) -> bytes:
    """Hash of an entry (RFC 6962 §2.1); the zero keeps an entry from being taken for a node."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of two subtrees (RFC 6962 §2.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def split(size: int) -> int:
    """The largest power of two below `size` (> 1): how many leaves the left subtree has."""
    return 1 << ((size - 1).bit_length() - 1)


def root(leaves: Sequence[bytes]) -> bytes:
    """The hash of a whole tree, from the hashes of its leaves."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    return frontier.root()


class Frontier:
    """The right edge of a growing tree: hashes of its perfect subtrees, largest first."""

    def __init__(self) -> None:
        self.size = 0
        self._hashes: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """One more leaf: equal subtrees merge, as a carry does when one counts in twos."""
        size = self.size
        while size & 1:
            leaf = node_hash(self._hashes.pop(), leaf)
            size >>= 1
        self._hashes.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """The hash of the tree as it is now."""
        if not self._hashes:
            return EMPTY
        total = self._hashes[-1]
        for left in reversed(self._hashes[:-1]):
            total = node_hash(left, total)
        return total


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """The ranges whose hashes prove that an entry is in a tree, from the leaf upwards (RFC 6962 §2.1.1)."""
    start, end, ranges = 0, size, []
    while end - start > 1:
        middle = start + split(end - start)
        if index < middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start = middle
    return ranges[::-1]


def consistency_ranges(first: int, size: int) -> list[Range]:
    """The ranges that prove that a tree of `first` entries is the beginning of this one (RFC 6962 §2.1.2)."""
    if not 0 < first < size:
        return []
    start, end, ranges = 0, size, []
    while first < end:
        middle = start + split(end - start)
        if first <= middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start = middle
    return [*([(start, end)] if start else []), *ranges[::-1]]


def hashes_of(ranges: Sequence[Range], subtree: Callable[[int, int], bytes]) -> list[bytes]:
    """A proof: the hashes of its ranges, by whoever can hash a range."""
    return [subtree(start, end) for start, end in ranges]


def check_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], total: bytes) -> bool:
    """Whether a proof leads from a leaf at an index to the root of a tree (RFC 9162 §2.1.3.2)."""
    if not 0 <= index < size:
        return False
    position, last, current = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            current = node_hash(sibling, current)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            current = node_hash(current, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and current == total


def check_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether a proof shows that the first tree is the beginning of the second (RFC 9162 §2.1.4.2)."""
    if first > second or first < 0:
        return False
    if first == second:
        return not proof and first_root == second_root
    if first == 0:
        return not proof and first_root == EMPTY
    hashes = [first_root, *proof] if first & (first - 1) == 0 else list(proof)
    if not hashes:
        return False
    position, last = first - 1, second - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    old = new = hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root

"""Answers that are kept for a while, in memory, within so many bytes; the oldest go first."""

import secrets
from collections import OrderedDict


class Kept:
    """Bytes by name, found by who was told the name."""

    def __init__(self, most: int) -> None:
        """`most` bytes are kept."""
        self.most = most
        self.size = 0
        self._contents: OrderedDict[str, bytes] = OrderedDict()

    def put(self, content: bytes, name: str | None = None) -> str:
        """Keep something, under a name that nobody can guess unless one is given."""
        name = secrets.token_urlsafe(24) if name is None else name
        self.size += len(content) - len(self._contents.pop(name, b""))
        self._contents[name] = content
        while self.size > self.most:
            self.size -= len(self._contents.popitem(last=False)[1])
        return name

    def get(self, name: str) -> bytes | None:
        """What was kept under a name, if it still is."""
        return self._contents.get(name)

"""Numbers of a submitted update: `weigh` makes them in a process of its own."""

from typing import Any

from atoll.net.verification import updates
from atoll.net.verification.updates import Tensors, is_finite

__all__ = ["facts", "is_finite"]


def facts(old: Tensors, new: Tensors, rates: float = 1.0) -> dict[str, Any]:
    """Whether all is finite, the share of weights that moved, the norm per learning rate, and a sketch."""
    if not is_finite(new):
        return {"finite": False, "changed": 0.0, "norm": 0.0, "sketch": []}
    return {
        "finite": True,
        "changed": updates.changed(old, new),
        "norm": updates.norm(old, new) / rates,
        "sketch": updates.sketch(old, new),
    }

"""What samples are grouped by where a recipe leaves it open: the rule of `encode.features = "auto"`, and why.

The rule says what measurements support (docs/results.md), and no more.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.config.run import RunConfig


def chosen(config: "RunConfig") -> str:
    """The features that samples are grouped by: those that are asked for, or the rule's."""
    return "pixels" if config.encode.features == "auto" else config.encode.features


def reason(config: "RunConfig") -> str | None:
    """Why the rule chose what it did, in a sentence; None where there was nothing to choose."""
    asked = config.partition
    plain = (asked.method, asked.like) == ("features", None) and asked.clusters > 1
    if config.encode.features != "auto" or not plain:
        return None
    if config.start is None:
        return (
            "grouped by pixels (encode.features = 'auto'); a vision model may tell more, "
            "and a [start] brings features of its own ('start'); recipes/studies/auto.toml finds out on yours"
        )
    return (
        "grouped by pixels (encode.features = 'auto'), which did as well as what the start sees on the two "
        "sets that were measured; encode.features = 'start' may do better on yours, which "
        "recipes/studies/auto.toml finds out"
    )

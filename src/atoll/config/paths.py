"""Paths in a recipe are relative to the recipe, and absolute from then on, wherever a command is run."""

import glob
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atoll.config.adapter import START
from atoll.config.data import OWN_FEATURES
from atoll.config.sampling import FEATURES

EMBEDDED = ("fashion-5k",)
"""Sets of samples that come with the program."""
WORDS = {
    "data.source": EMBEDDED,
    "expert.adapter.base": (START,),
    "expert.override.adapter.base": (START,),
    "encode.features": OWN_FEATURES,
    "evaluate.features": FEATURES,
}
"""Values that are no paths, whatever lies beside a recipe."""
PATHS = ("data.source", "partition.file", "partition.like")
"""Keys that name a file or a folder."""
NAMES = (
    *("expert.init", "expert.adapter.base", "expert.override.init", "expert.override.adapter.base"),
    *("encode.autoencoder", "encode.features", "encode.text"),
    *("evaluate.features", "evaluate.monolith", "evaluate.lpips", "evaluate.clip"),
)
"""Keys that may name one, or something else of that name."""


def anchored(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe with its relative paths made absolute: in `folder`, or in the one at work."""
    result = dict(tree)
    for key in (*PATHS, *NAMES):
        replace = partial(_absolute, folder=folder, certain=key in PATHS, words=WORDS.get(key, ()))
        result = _replaced(result, key.split("."), replace)
    return result


def _replaced(value: Any, keys: Sequence[str], replace: Callable[[str], str]) -> Any:
    """What the names behind these keys of a tree become; in a list, of each of its entries."""
    if isinstance(value, list | tuple):
        return [_replaced(one, keys, replace) for one in value]
    if not keys:
        return replace(value) if isinstance(value, str) else value
    first, *rest = keys
    if not isinstance(value, Mapping) or first not in value:
        return value
    return {**value, first: _replaced(value[first], rest, replace)}


def _absolute(value: str, folder: Path, *, certain: bool, words: Sequence[str]) -> str:
    if value in words or value.startswith(("hub:", "~")) or Path(value).is_absolute() or not value:
        return value
    for place in (folder, Path.cwd()):
        path = place.absolute() / value
        if path.exists() or (certain and glob.glob(str(path))):
            return str(path)
    return str(folder.absolute() / value) if certain else value

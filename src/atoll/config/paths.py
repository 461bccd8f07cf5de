"""Paths in a recipe are relative to the recipe, and absolute from then on, wherever a command is run."""

import glob
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atoll.config.adapter import START

EMBEDDED = ("fashion-5k",)
"""Sets of samples that come with the program."""
WORDS = {"data.source": EMBEDDED, "expert.adapter.base": (START,), "encode.features": ("pixels", START)}
"""Values that are no paths, whatever lies beside a recipe."""
PATHS = ("data.source", "partition.file", "partition.like")
"""Keys that name a file or a folder."""
NAMES = ("expert.init", "expert.adapter.base", "encode.autoencoder", "encode.features", "encode.text")
"""Keys that may name one, or something else of that name."""


def anchored(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe with its relative paths made absolute: in `folder`, or in the one at work."""
    result = dict(tree)
    for key in (*PATHS, *NAMES):
        replace = partial(_absolute, folder=folder, certain=key in PATHS, words=WORDS.get(key, ()))
        result = _replaced(result, key.split("."), replace)
    return result


def _replaced(tree: Mapping[str, Any], keys: Sequence[str], replace: Callable[[str], str]) -> dict[str, Any]:
    """A tree in which the value behind these keys, if there is one, is replaced."""
    first, *rest = keys
    value = tree.get(first)
    if isinstance(value, Mapping) and rest:
        return {**tree, first: _replaced(value, rest, replace)}
    if isinstance(value, str) and not rest:
        return {**tree, first: replace(value)}
    return dict(tree)


def _absolute(value: str, folder: Path, *, certain: bool, words: Sequence[str]) -> str:
    if value in words or value.startswith(("hub:", "~")) or Path(value).is_absolute() or not value:
        return value
    for place in (folder, Path.cwd()):
        path = place.absolute() / value
        if path.exists() or (certain and glob.glob(str(path))):
            return str(path)
    return str(folder.absolute() / value) if certain else value

"""Paths in a recipe are relative to the recipe, and absolute from then on, wherever a command is run."""

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EMBEDDED = ("fashion-5k",)
"""Sets of samples that come with the program."""
PATHS = ("data.source", "partition.file", "partition.like")
"""Keys that name a file or a folder."""
NAMES = ("expert.init", "encode.autoencoder", "encode.features", "encode.text")
"""Keys that may name one, or something else of that name."""


def anchored(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe with its relative paths made absolute: in `folder`, or in the one at work."""
    result = dict(tree)
    for key in (*PATHS, *NAMES):
        section, leaf = key.split(".")
        inner = result.get(section)
        if isinstance(inner, Mapping) and isinstance(inner.get(leaf), str):
            path = _absolute(inner[leaf], folder, certain=key in PATHS)
            result[section] = {**result[section], leaf: path}
    return result


def _absolute(value: str, folder: Path, *, certain: bool) -> str:
    if value in EMBEDDED or value.startswith(("hub:", "~")) or Path(value).is_absolute() or not value:
        return value
    for place in (folder, Path.cwd()):
        path = place.absolute() / value
        if path.exists() or (certain and glob.glob(str(path))):
            return str(path)
    return str(folder.absolute() / value) if certain else value

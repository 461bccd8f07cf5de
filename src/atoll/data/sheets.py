"""Sheets of pictures: many samples on one page, as the network sees them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from atoll.data import pictures
from atoll.data.columns import fixed_bytes
from atoll.data.rules import lottery
from atoll.data.values import standardise, to_pixels
from atoll.runs import replacing
from atoll.runs.records import SampleFormat, SamplesContents

COUNT = 64
"""Samples on a sheet."""
TILE = 64
"""Larger pictures are made this small."""
SMALL = 32
"""Smaller ones are shown twice or more as large, without smoothing."""


def draw(stored: NDArray[Any], contents: SampleFormat, path: Path) -> None:
    """A square of pictures of samples at rest, through the very values that networks are given."""
    page(standardise(torch.from_numpy(stored), contents), contents, path, int(np.ceil(np.sqrt(len(stored)))))


def page(x_0: Tensor, contents: SampleFormat, path: Path, columns: int) -> None:
    """Pictures of samples as networks see or make them, in so many columns."""
    tiles = to_pixels(x_0, contents)
    if max(tiles.shape[1:3]) > TILE:
        tiles = np.stack([_shrunk(tile) for tile in tiles])
    zoom = max(1, SMALL // max(tiles.shape[1:3]))
    tiles = tiles.repeat(zoom, axis=1).repeat(zoom, axis=2)
    with replacing(path) as beside:
        pictures.sheet(tiles, columns).save(beside, format="PNG")


def contact_sheet(parts: Sequence[Path], contents: SamplesContents, path: Path) -> None:
    """A sheet of samples drawn at random from all parts: a function of their ids and places alone."""
    lowest, before = np.zeros((0, 3), np.uint64), 0
    for number, part in enumerate(parts):
        chunks = pq.read_table(part, columns=["id"], use_threads=False)["id"].chunks
        ids = np.concatenate([np.zeros((0, 32), np.uint8), *(fixed_bytes(chunk) for chunk in chunks)])
        rows = np.arange(len(ids), dtype=np.uint64)
        # By their place as well: copies of one sample must not fill the sheet.
        tickets = lottery(ids, 0) ^ lottery((rows + np.uint64(before))[:, None].view(np.uint8), 1)
        before += len(ids)
        candidates = np.stack([tickets, np.full(len(ids), number, np.uint64), rows], axis=1)
        lowest = np.concatenate([lowest, candidates])
        lowest = lowest[np.lexsort(lowest.T[::-1])[:COUNT]]
    stored = [stored_sample(parts[int(part)], int(row), contents) for _, part, row in lowest]
    draw(np.stack(stored), contents, path)


def stored_sample(path: Path, row: int, contents: SamplesContents) -> NDArray[Any]:
    """One sample of a part, as it rests."""
    group, within = divmod(row, contents.group)
    with pq.ParquetFile(path) as file:
        raw = file.read_row_group(group, ["sample"])["sample"][within].as_py()
    return np.frombuffer(raw, contents.dtype).reshape(contents.shape)


def _shrunk(tile: NDArray[np.uint8]) -> NDArray[np.uint8]:
    image = Image.fromarray(tile[..., 0] if tile.shape[-1] == 1 else tile)
    image.thumbnail((4 * TILE, TILE) if tile.shape[1] > tile.shape[0] else (TILE, TILE))
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels

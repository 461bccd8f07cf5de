"""Who made what: the weights of the experts along each sample's way, as numbers and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from atoll.runs import read_json
from atoll.sampling.samples import Samples

PALETTE = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#777777"]
"""One colour per expert, told apart by people who see colours differently (Tol's bright set)."""

FILE, PICTURE = "provenance.json", "provenance.png"
SHOWS = (
    "weights of the experts along each sample's way, their mean (shares), and how much of the way from noise "
    "to sample each expert's velocity went (moved, signed): where it came from, not what an expert "
    "contributed; `atoll credit` tells that"
)
ROW, GAP, LINE = 56, 6, 10
"""Height of a sample in the picture, the space around it, and the height of the line of disagreement."""
WAY = 480
"""Width of the way from noise to data."""


class Provenance(NamedTuple):
    """What is known of how one sample was made."""

    times: tuple[float, ...]
    weights: NDArray[np.float32]
    """(asked, experts)"""
    disagreement: NDArray[np.float32]
    switches: int
    moved: NDArray[np.float32] | None = None
    """(experts,): how much of the way each expert went."""

    @classmethod
    def of(cls, samples: Samples, row: int) -> "Provenance":
        """That of one sample among several."""
        weights, apart = samples.weights[:, row].float(), samples.disagreement[:, row].float()
        moved = None if samples.moved is None else _numbers(samples.moved[row].float())
        return cls(samples.times, _numbers(weights), _numbers(apart), int(samples.switches[row]), moved)


def _numbers(values: torch.Tensor) -> NDArray[np.float32]:
    return values.cpu().numpy().astype(np.float32)


def record(indices: Sequence[int], traced: Sequence[Provenance]) -> dict[str, Any]:
    """All of it as JSON, each sample with its number; every row of weights sums to one."""
    return {
        "shows": SHOWS,
        "times": list(traced[0].times),
        "samples": [
            {
                "index": index,
                "shares": one.weights.mean(0).round(6).tolist(),
                "moved": None if one.moved is None else one.moved.round(6).tolist(),
                "switches": one.switches,
                "disagreement": one.disagreement.round(6).tolist(),
                "weights": one.weights.round(6).tolist(),
            }
            for index, one in zip(indices, traced, strict=True)
        ],
    }


def moved(folder: Path) -> dict[int, list[float]]:
    """How much of the way of each sample in a folder each expert went, by its number, where that was told."""
    path = folder / FILE
    samples = read_json(path)["samples"] if path.is_file() else []
    return {one["index"]: one["moved"] for one in samples if one.get("moved") is not None}


def picture(traced: Sequence[Provenance], pixels: NDArray[np.uint8] | None = None) -> Image.Image:
    """A row per sample: its way from noise (left) to data, in the colours of its experts, and the sample.

    The grey line under a way is as dark as the experts were apart.
    """
    side = 0 if pixels is None else ROW + GAP
    sheet = Image.new("RGB", (WAY + side + 2 * GAP, len(traced) * (ROW + GAP) + GAP), "white")
    most = max(float(one.disagreement.max()) for one in traced) or 1.0
    for number, one in enumerate(traced):
        top = GAP + number * (ROW + GAP)
        sheet.paste(Image.fromarray(_way(one.weights, ROW - LINE)), (GAP, top))
        grey = 255 - np.rint(255 * _stretch(one.disagreement[None], WAY) / most).astype(np.uint8)
        sheet.paste(Image.fromarray(np.repeat(grey, LINE - 2, axis=0)), (GAP, top + ROW - LINE + 2))
        if pixels is not None:
            values = pixels[number]
            shown = Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)
            sheet.paste(shown.resize((ROW, ROW), Image.Resampling.NEAREST), (WAY + 2 * GAP, top))
    return sheet


def _way(weights: NDArray[np.float32], height: int) -> NDArray[np.uint8]:
    """Stacked weights over time as pixels: each column is shared out among the experts."""
    colours = np.array([_rgb(PALETTE[k % len(PALETTE)]) for k in range(weights.shape[1])], dtype=np.uint8)
    reached = np.cumsum(weights, axis=1)
    level = (np.arange(height)[:, None] + 0.5) / height * reached[:, -1]
    owner = (level[:, :, None] > reached[None]).sum(2).clip(max=weights.shape[1] - 1)
    return _stretch(colours[owner], WAY)


def _stretch(values: NDArray[Any], width: int) -> NDArray[Any]:
    """Columns repeated to fill a width."""
    return values[:, np.arange(width) * values.shape[1] // width]


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)

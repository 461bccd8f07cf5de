"""Samples beside what was found of them: who made them, who would, and their nearest training samples."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.evaluate import neighbours
from atoll.pages import pictures
from atoll.runs import Run
from atoll.sampling import gallery, writer
from atoll.sampling.opening import contents_of


def shown(run: Run, x_0: Tensor) -> str:
    """A sample, (1, channels, *grid), as a data address of a picture."""
    encoded = io.BytesIO()
    gallery.picture(gallery.to_pixels(x_0, contents_of(run))[0]).save(encoded, format="PNG")
    return pictures.address(encoded.getvalue())


def nearest(run: Run, near: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Training samples: their ids, and themselves where the data are at hand."""
    known = neighbours.by_id(run, [one["id"] for one in near])
    return [{**one, "picture": shown(run, known[one["id"]]) if one["id"] in known else None} for one in near]


def own(run: Run, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Samples of the run that `atoll credit` traced: its maker, its likeliest one, whom it is near."""
    path = run.samples.path / writer.ARRAY
    traced = record.get("samples", [])
    if not traced or not path.is_file():
        return []
    stored = np.load(path, mmap_mode="r", allow_pickle=False)[: len(traced)]
    return [
        {
            "picture": shown(run, torch.from_numpy(values[None].astype(np.float32))),
            "index": one["index"],
            "made_by": one["made_by"],
            "share": one["shares"][one["made_by"]],
            "moved": None if one.get("moved") is None else one["moved"][one["made_by"]],
            "expert": one["expert"],
            "probability": one["posterior"][one["expert"]],
            "nearest": nearest(run, one["nearest"][one["expert"]][:1]) if one["nearest"] else [],
        }
        for one, values in zip(traced, stored, strict=True)
    ]

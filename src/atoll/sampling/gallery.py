"""Samples on disk: pictures that say what they are, a grid of them, arrays, and who made which."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from atoll.data import store
from atoll.data.latents import decode_samples
from atoll.errors import AtollError
from atoll.runs import replacing, write_json
from atoll.runs.records import SampleFormat
from atoll.sampling import provenance
from atoll.sampling.provenance import PALETTE, Provenance
from atoll.sampling.request import Request
from atoll.sampling.samples import Samples

WIDEST = 16
"""Columns of a grid that a person still takes in."""


class Writer:
    """Writes samples as they come, and what is known about all of them at the end.

    Without `contents` nobody knows what values mean, and there are no pictures.
    """

    def __init__(self, out: Path, contents: SampleFormat | None, request: Request) -> None:
        self.out, self.contents, self.request, self.how = out, contents, request, request.settings
        self._x_0: dict[int, torch.Tensor] = {}
        self._shares: dict[int, list[float]] = {}
        self._provenance: dict[int, Provenance] = {}
        self._strategy = self.how.strategy
        self._certainty: float | None = None
        self._pixels: dict[int, NDArray[np.uint8]] = {}
        self._made = False

    def __len__(self) -> int:
        return len(self._x_0)

    def add(self, indices: Sequence[int], samples: Samples) -> None:
        """Take in a batch and write its pictures."""
        if not self._x_0:
            self._on_disk(self._clear)
        for row, index in enumerate(indices):
            self._x_0[index] = samples.x_0[row].cpu()
            self._shares[index] = samples.shares[row].tolist()
            if self.how.provenance:
                self._provenance[index] = Provenance.of(samples, row)
        self._strategy, self._certainty = samples.strategy, samples.certainty
        if self.contents is None:
            return
        pixels = to_pixels(samples.x_0, self.contents)
        for row, index in enumerate(indices):
            self._pixels[index] = pixels[row]
            about = {**self._about(index), "strategy": samples.strategy}
            self._write(self.out / picture_name(index), _picture(pixels[row]), about)

    def open(self) -> None:
        """Make sure, before any work is done, that there is a place for it."""
        self._made = not self.out.exists()
        self._on_disk(lambda: self.out.mkdir(parents=True, exist_ok=True))
        if not os.access(self.out, os.W_OK):
            raise AtollError(f"cannot write to {self.out} (permission denied); give another --out")

    def _clear(self) -> None:
        """Pictures of an earlier, longer call would be taken for ours."""
        for path in self.out.iterdir():
            if re.fullmatch(r"sample-\d{5,}\.png", path.name):
                path.unlink()

    def _about(self, index: int) -> dict[str, str]:
        """What a picture says of itself."""
        shares = self._shares[index]
        return {
            "Software": "Atoll",
            **self.request.asked(index),
            "seed": str(self.how.seed),
            "index": str(index),
            "solver": self.how.solver,
            "steps": str(self.how.steps),
            "guidance": str(self.how.guidance),
            "expert": str(shares.index(max(shares))),
        }

    def _write(self, path: Path, picture: Image.Image, about: Mapping[str, str]) -> None:
        information = PngInfo()
        for key, value in about.items():
            information.add_itxt(key, value)

        def save() -> None:
            with replacing(path) as beside:
                picture.save(beside, format="PNG", pnginfo=information)

        self._on_disk(save)

    def finish(self) -> dict[str, Any]:
        """Write arrays, grid and makers of all samples that came; an empty answer if there are none."""
        order = sorted(self._x_0)
        if not order:
            if self._made:
                self.out.rmdir()
            return {}
        shares = [self._shares[index] for index in order]
        experts = [row.index(max(row)) for row in shares]
        asked = {key: [self.request.asked(index)[key] for index in order] for key in self.request.asked(0)}
        written = {
            "samples": str(self.out / "samples.npy"),
            "experts": experts,
            "strategy": self._strategy,
            "certainty": self._certainty,
            **asked,
        }

        def save() -> None:
            with replacing(self.out / "samples.npy") as beside, beside.open("wb") as file:
                np.save(file, torch.stack([self._x_0[index] for index in order]).numpy(), allow_pickle=False)
            if self._pixels:
                written["grid"] = str(self.out / "grid.png")
                with replacing(self.out / "grid.png") as beside:
                    pixels = np.stack([self._pixels[i] for i in order])
                    grid(pixels, experts, self._columns()).save(beside, format="PNG")
            if self._provenance:
                written["provenance"] = str(self._write_provenance(order))
            chosen = {"strategy": self._strategy, "certainty": self._certainty}
            record = {"indices": order, "experts": experts, "shares": shares, **chosen, **asked}
            write_json(self.out / "samples.json", record)

        self._on_disk(save)
        return written

    def _columns(self) -> int:
        """A column for each thing that was asked for, if they are few and come in turn; else about square."""
        different = len(set(self.request.words))
        return different if 1 < different <= WIDEST and different < self.request.num else 0

    def _write_provenance(self, order: Sequence[int]) -> Path:
        """Who made what, as numbers and as a picture; the path of the numbers."""
        pixels = np.stack([self._pixels[i] for i in order]) if self._pixels else None
        traced = [self._provenance[i] for i in order]
        with replacing(self.out / provenance.PICTURE) as beside:
            provenance.picture(traced, pixels).save(beside, format="PNG")
        write_json(self.out / provenance.FILE, provenance.record(order, traced))
        return self.out / provenance.FILE

    def _on_disk(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            reason = error.strerror or error
            raise AtollError(f"cannot write to {self.out} ({reason}); give another --out") from None


def to_pixels(x_0: torch.Tensor, contents: SampleFormat) -> NDArray[np.uint8]:
    """A picture (n, height, width, channels) of each sample; latents go through their autoencoder."""
    if contents.autoencoder is None:
        return store.to_pixels(x_0, contents)
    decoded = decode_samples(x_0, contents, str(x_0.device))
    scale = (127.5,) * decoded.shape[1]
    plain = SampleFormat(kind="image" if decoded.ndim == 4 else "video", dtype="uint8", mean=scale, std=scale)
    return store.to_pixels(decoded, plain)


def picture_name(index: int) -> str:
    """The file of one sample."""
    return f"sample-{index:05d}.png"


def _picture(values: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)


def grid(pixels: NDArray[np.uint8], experts: Sequence[int] | None = None, columns: int = 0) -> Image.Image:
    """One picture of many, about square, each with a line in the colour of its expert under it."""
    count, height, width, _ = pixels.shape
    columns = columns or max(1, round(count**0.5))
    zoom = max(1, round(56 / max(height, width)))
    mark, gap = (3, 4) if experts is not None else (0, 2)
    cell_w, cell_h = width * zoom + gap, height * zoom + gap + mark
    sheet = Image.new("RGB", (columns * cell_w + gap, -(-count // columns) * cell_h + gap), "white")
    for index, values in enumerate(pixels):
        picture = _picture(values).resize((width * zoom, height * zoom), Image.Resampling.NEAREST)
        x, y = gap + index % columns * cell_w, gap + index // columns * cell_h
        sheet.paste(picture, (x, y))
        if experts is not None:
            sheet.paste(
                PALETTE[experts[index] % len(PALETTE)],
                (x, y + height * zoom, x + width * zoom, y + height * zoom + mark),
            )
    return sheet

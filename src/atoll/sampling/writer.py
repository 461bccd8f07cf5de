"""Samples on disk as they come: arrays, pictures that say what they are, a grid, and who made which.

Memory does not grow with the number of samples: what is listed and shown is of the first of them.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from atoll.errors import AtollError, refusal
from atoll.runs import DONE, read_stamped, replacing, stamped, write_json
from atoll.runs.records import SampleFormat
from atoll.sampling import provenance, titles
from atoll.sampling.arrays import ArrayFile, free_bytes
from atoll.sampling.gallery import GAP, described, grid, picture, picture_name, to_pixels
from atoll.sampling.provenance import Provenance
from atoll.sampling.request import Request
from atoll.sampling.samples import Samples

ARRAY, GRID, RECORD = "samples.npy", "grid.png", "samples.json"
WIDEST = 16
"""Columns of a grid that a person still takes in."""
UNTOLD = ("version", "indices", "shares", "request")
"""What is in the record of samples and in no answer."""
LISTED = 10_000
"""Samples that are listed one by one with those who made them; of all, it is counted."""
SHOWN, SHOWN_BYTES = 1024, 128 * 2**20
"""Samples of the grid, and the bytes of pixels that may be kept for it."""
TRACED, DRAWN = 1000, 200
"""Samples whose way is told as numbers, and as a picture."""
BLOCK = 4096
"""What the smallest file takes on a disk."""
DECODED = 64
"""How many times larger a picture may be than its latents."""


class Writer:
    """Writes the samples of one request to a folder; what lies there besides stays.

    Without `contents` nobody knows what values mean, and there are no pictures.
    """

    def __init__(
        self, out: Path, contents: SampleFormat | None, request: Request, identity: str | None = None
    ) -> None:
        self.out, self.contents, self.request, self.settings = out, contents, request, request.settings
        self.identity = identity
        """By this the same request is known again."""
        self._array: ArrayFile | None = None
        self._shares: dict[int, list[float]] = {}
        self._makers: Counter[int] = Counter()
        self._provenance: dict[int, Provenance] = {}
        self._strategy = self.settings.strategy
        self._certainty: float | None = None
        self._pixels: dict[int, NDArray[np.uint8]] = {}
        self._made = False

    def __len__(self) -> int:
        return 0 if self._array is None else len(self._array.done)

    def open(self, shape: Sequence[int]) -> None:
        """Make sure, before any work is done, that there is a place for it, and room."""
        needed, free = self.request.num * self._bytes(shape), free_bytes(self.out)
        if needed > free:
            raise AtollError(
                f"{self.request.num:,} samples need about {_human(needed)}, and {self.out} has "
                f"{_human(free)} left; ask for fewer, or give another --out"
            )
        self._made = not self.out.exists()
        self._on_disk(lambda: self.out.mkdir(parents=True, exist_ok=True))
        if not os.access(self.out, os.W_OK):
            raise AtollError(f"cannot write to {self.out} (it is read-only for you); give another --out")
        self._array = ArrayFile(self.out / ARRAY, self.request.num, shape)
        self._on_disk(self._array.claim)  # from now on the folder is nobody else's

    def repeated(self) -> dict[str, Any] | None:
        """The answer to the very same request, if all of it lies here: samples depend on nothing else."""
        record = earlier(self.out) or {}
        if (record.get("request"), record.get("done")) != (self.identity, self.request.num):
            return None
        names = {"samples": ARRAY}
        names |= {} if self.contents is None else {"grid": GRID}
        names |= {"provenance": provenance.FILE} if self.settings.provenance else {}
        pictures = () if self.contents is None else map(picture_name, range(self.request.num))
        if not all((self.out / name).is_file() for name in (*names.values(), *pictures)):
            return None
        summary = {key: value for key, value in record.items() if key not in UNTOLD}
        places = {key: str(self.out / name) for key, name in names.items()}
        makers = {int(expert): count for expert, count in record["makers"].items()}
        return {**places, "folder": str(self.out), **summary, "makers": makers}

    def _bytes(self, shape: Sequence[int]) -> int:
        """What one sample takes: its numbers, and a picture that cannot be compressed."""
        values = math.prod(shape)
        if self.contents is None:
            return 4 * values
        pixels = values * (1 if self.contents.autoencoder is None else DECODED)
        return 4 * values + -(-pixels // BLOCK) * BLOCK

    def add(self, indices: Sequence[int], samples: Samples) -> None:
        """Take in a batch and write its numbers and pictures."""
        if self._array is None:
            self._array = ArrayFile(self.out / ARRAY, self.request.num, samples.x_0.shape[1:])
        if not len(self):
            self._on_disk(self._replace_own)
        array, values = self._array, samples.x_0.float().cpu().numpy()
        self._on_disk(lambda: array.put(indices, values))
        shares = samples.shares.tolist()
        self._strategy, self._certainty = samples.strategy, samples.certainty
        for row, index in enumerate(indices):
            self._makers[_leader(shares[row])] += 1
            if index < LISTED:
                self._shares[index] = shares[row]
            if self.settings.provenance and index < TRACED:
                self._provenance[index] = Provenance.of(samples, row)
        if self.contents is None:
            return
        pixels = to_pixels(samples.x_0, self.contents)
        most = min(SHOWN, max(WIDEST, SHOWN_BYTES // pixels[0].nbytes))
        for row, index in enumerate(indices):
            if index < most:
                self._pixels[index] = pixels[row]
            maker = str(_leader(shares[row]))
            about = {**self.request.about(index), "expert": maker, "strategy": samples.strategy}
            self._write(self.out / picture_name(index), picture(pixels[row]), about)

    def _replace_own(self) -> None:
        """What an earlier request left in this folder, by its own record, would be taken for ours."""
        record = earlier(self.out)
        if record is None:
            return
        for index in range(record.get("num", 0)):
            (self.out / picture_name(index)).unlink(missing_ok=True)
        for name in (RECORD, DONE, provenance.FILE, provenance.PICTURE):
            (self.out / name).unlink(missing_ok=True)

    def _write(self, path: Path, shown: Image.Image, about: Mapping[str, str]) -> None:
        def save() -> None:
            with replacing(path) as beside:
                shown.save(beside, format="PNG", pnginfo=described(about))

        self._on_disk(save)

    def finish(self) -> dict[str, Any]:
        """Write arrays, grid and makers of all samples that came; an empty answer if there are none."""
        array = self._array
        if array is None or not len(self):
            self._leave_nothing()
            return {}
        listed = sorted(self._shares)
        shares = [self._shares[index] for index in listed]
        words = {key: [self.request.asked(index)[key] for index in listed] for key in self.request.asked(0)}
        record = {
            "num": self.request.num,
            "done": len(self),
            "request": self.identity,
            "indices": listed,
            "experts": [_leader(row) for row in shares],
            "makers": dict(sorted(self._makers.items())),
            "strategy": self._strategy,
            "certainty": self._certainty,
            **words,
        }
        written = {"samples": str(self.out / ARRAY), "folder": str(self.out)}

        def save() -> None:
            array.finish()
            if self._pixels:
                written["grid"] = str(self._write_grid())
            if self._provenance:
                written["provenance"] = str(self._write_provenance())
            write_json(self.out / RECORD, stamped({**record, "shares": shares}))

        self._on_disk(save)
        summary = {key: value for key, value in record.items() if key not in UNTOLD}
        return {**written, **summary}

    def _leave_nothing(self) -> None:
        if self._array is not None:
            self._array.abandon()
        if self._made:
            self.out.rmdir()

    def _write_grid(self) -> Path:
        order = sorted(self._pixels)
        experts = [_leader(self._shares[index]) for index in order]
        with replacing(self.out / GRID) as beside:
            pixels = np.stack([self._pixels[index] for index in order])
            sheet = grid(pixels, experts, self._columns())
            titles.headed(sheet, self._titles(), GAP).save(beside, format="PNG")
        return self.out / GRID

    def _columns(self) -> int:
        """A column for each thing that was asked for, if they are few and come in turn; else about square."""
        different = len(set(self.request.words))
        return different if 1 < different <= WIDEST and different < self.request.num else 0

    def _titles(self) -> list[str]:
        """What each column was asked to be, where columns mean something."""
        return [next(iter(self.request.asked(index).values())) for index in range(self._columns())]

    def _write_provenance(self) -> Path:
        """Who made what, as numbers and as a picture; the path of the numbers."""
        order = sorted(self._provenance)
        shown = [index for index in order[:DRAWN] if index in self._pixels or not self._pixels]
        pixels = np.stack([self._pixels[i] for i in shown]) if self._pixels else None
        with replacing(self.out / provenance.PICTURE) as beside:
            drawn = provenance.picture([self._provenance[i] for i in shown], pixels)
            drawn.save(beside, format="PNG")
        traced = [self._provenance[index] for index in order]
        write_json(self.out / provenance.FILE, provenance.record(order, traced))
        return self.out / provenance.FILE

    def _on_disk(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise AtollError(f"cannot write to {self.out} ({refusal(error)}); give another --out") from None


def own_folder(out: Path, identity: str, *, asked: bool) -> Path:
    """A folder for one request: new, empty, or that of the very same request; nothing there is lost.

    A folder that was asked for and is not such a one is refused; else there are more beside it, numbered.
    """
    if _is_free(out, identity):
        return out
    if asked:
        raise AtollError(f"{out} is there already and not empty; give a new folder, as --out {_next(out)}")
    number = 2
    while not _is_free(out.with_name(f"{out.name}-{number}"), identity):
        number += 1
    return out.with_name(f"{out.name}-{number}")


def _next(out: Path) -> Path:
    number = 2
    while out.with_name(f"{out.name}-{number}").exists():
        number += 1
    return out.with_name(f"{out.name}-{number}")


def _is_free(out: Path, identity: str) -> bool:
    if not out.exists():
        return True
    if not out.is_dir():
        return False
    record = earlier(out)
    return not any(out.iterdir()) if record is None else record.get("request") == identity


def earlier(out: Path) -> dict[str, Any] | None:
    """What an earlier request says of the samples that it left in a folder."""
    if not (out / RECORD).is_file():
        return None
    return read_stamped(out / RECORD)


def _leader(shares: Sequence[float]) -> int:
    return shares.index(max(shares))


def _human(size: float) -> str:
    power = min(4, int(math.log(max(size, 1), 1000)))
    return f"{size / 1000**power:,.1f} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"

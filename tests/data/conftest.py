"""Small sources of every kind, made on the spot."""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from atoll.config import DataConfig, EncodeConfig, PartitionConfig, RunConfig
from atoll.data.encode import prepare
from atoll.data.parts import Parts
from atoll.runs import Run

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may wait for a network

SHARED = Path(__file__).parents[3] / "shared"
"""Real data and weights, where a developer has them."""


def needs(path: str) -> pytest.MarkDecorator:
    """Skip where real data or weights are absent."""
    return pytest.mark.skipif(not (SHARED / path).exists(), reason=f"no {path} beside the project")


def picture(value: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Image.Image:
    """A picture of one grey."""
    colour = value if mode == "L" else (value,) * len(mode)
    return Image.new(mode, size, colour)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """A picture as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, format=form, **options)
    return file.getvalue()


def pixels(count: int, size: int = 8, channels: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    """Random pictures (count, size, size, channels), all different."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A run of a source, with settings by section."""

    def make(
        source: str | Path,
        data: dict[str, Any] | None = None,
        encode: dict[str, Any] | None = None,
        partition: dict[str, Any] | None = None,
        name: str = "run",
        seed: int = 0,
    ) -> Run:
        config = RunConfig(
            name=name,
            seed=seed,
            data=DataConfig(source=str(source), **(data or {})),
            encode=EncodeConfig(**{"device": "cpu", **(encode or {})}),
            partition=PartitionConfig(**{"clusters": 2, **(partition or {})}),
        )
        return Run(tmp_path / name, config)

    return make


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., Path]:
    """An .npz file of random pictures."""

    def make(count: int = 20, name: str = "set.npz", **arrays: Sequence[Any] | NDArray[Any]) -> Path:
        np.savez(tmp_path / name, **{"images": pixels(count), **arrays})
        return tmp_path / name

    return make


@pytest.fixture
def parts(make_run: MakeRun, npz: Any) -> Parts:
    """Sixty samples of four classes in parts of sixteen; five more are duplicates, and dropped."""
    images = pixels(60)
    run = make_run(
        npz(images=np.concatenate([images, images[:5]]), labels=np.arange(65) % 4),
        data={"part": 16, "duplicates": "drop"},
    )
    return Parts(prepare(run))

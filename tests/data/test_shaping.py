"""Whatever a source holds comes to rest without loss and reaches the network in [-1, 1]."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from atoll.config import DataConfig
from atoll.data.encode import prepare
from atoll.data.shaping import Shaper
from atoll.data.values import standardise, to_pixels
from atoll.errors import DataError
from tests.data.conftest import MakeRun, encoded, picture, pixels
from tests.data.test_deep import png16


def stored(run: Any) -> Any:
    contents = run.data.contents
    tables = [pq.read_table(run.data.path / name) for name, _ in contents.parts]
    raw = b"".join(cell for table in tables for cell in table["sample"].to_pylist())
    return np.frombuffer(raw, contents.dtype).reshape(-1, *contents.shape).copy()


@pytest.mark.parametrize(
    ("low", "high", "dtype", "rest"),
    [
        (0, 1, np.float32, "float32"),
        (0, 1, np.float64, "float32"),
        (-1, 1, np.float32, "float32"),
        (0, 255, np.float32, "float32"),
        (0, 65535, np.uint16, "uint16"),
        (0, 255, np.int64, "uint8"),
        (0, 1, np.bool_, "uint8"),
    ],
)
def test_pictures_of_any_range_reach_the_network_alike(
    tmp_path: Path, make_run: MakeRun, low: float, high: float, dtype: Any, rest: str
) -> None:
    eight = pixels(30, size=16)
    if dtype == np.bool_:
        eight = np.where(eight > 127, 255, 0).astype(np.uint8)
    images = (low + eight.astype(np.float64) / 255 * (high - low)).astype(dtype)
    np.savez(tmp_path / "set.npz", images=images)
    run = make_run(tmp_path / "set.npz")
    contents = prepare(run).contents
    assert (contents.kind, contents.shape, contents.dtype) == ("image", (3, 16, 16), rest)
    np.testing.assert_array_equal(stored(run), images.transpose(0, 3, 1, 2).astype(rest))
    seen = standardise(torch.from_numpy(stored(run)), contents)
    expected = torch.from_numpy(eight.transpose(0, 3, 1, 2).astype(np.float32)) / 127.5 - 1
    assert (seen - expected).abs().max() < 1e-5
    np.testing.assert_array_equal(to_pixels(seen, contents), eight)


def test_grey_floats_by_the_name_of_their_field(tmp_path: Path, make_run: MakeRun) -> None:
    images = np.random.default_rng(0).random((30, 16, 16), np.float32)
    np.savez(tmp_path / "set.npz", images=images)
    contents = prepare(make_run(tmp_path / "set.npz")).contents
    assert (contents.kind, contents.shape) == ("image", (1, 16, 16))
    np.savez(tmp_path / "set.npz", x=images)
    with pytest.raises(DataError, match="may be grey pictures .* or series"):
        prepare(make_run(tmp_path / "set.npz", name="unclear"))


def test_a_folder_of_16_bits(tmp_path: Path, make_run: MakeRun) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (5, 8, 8, 3), dtype=np.uint16)
    (tmp_path / "images").mkdir()
    for index, one in enumerate(values):
        (tmp_path / "images" / f"{index}.png").write_bytes(png16(one))
    run = make_run(tmp_path / "images")
    contents = prepare(run).contents
    assert (contents.dtype, contents.mean) == ("uint16", (32767.5,) * 3)
    np.testing.assert_array_equal(stored(run), values.transpose(0, 3, 1, 2))


def test_what_is_lost_is_remarked() -> None:
    made = Shaper(DataConfig(), [lambda: encoded(picture(5, mode="L"))], "set")
    frames = [Image.new("RGB", (8, 8), (red, 0, 0)) for red in (250, 100)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    shaped = made(moving)
    assert shaped.remarks == ("animated or of several pages, the first is taken", "colour made grey")
    assert np.abs(shaped.values.astype(int) - 0.299 * 250).max() <= 1
    assert made.notes == ("grey: the first picture is (data.channels overrules it)",)


def test_the_first_usable_example_decides_on_depth() -> None:
    examples = [lambda: b"broken", lambda: encoded(Image.fromarray(np.zeros((4, 4), np.uint16)))]
    assert Shaper(DataConfig(), examples, "set").rest == np.uint16

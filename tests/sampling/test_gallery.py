import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atoll.config import SampleConfig
from atoll.errors import AtollError
from atoll.runs.records import SampleFormat
from atoll.sampling import gallery
from atoll.sampling.provenance import PALETTE
from atoll.sampling.request import Request
from atoll.sampling.samples import Samples


def test_the_grid_shows_every_picture_and_its_maker():
    pixels = np.zeros((3, 56, 56, 1), np.uint8)
    pixels[1] = 200
    sheet = gallery.grid(pixels, experts=[0, 1, 0], columns=2)
    first, second = sheet.getpixel((4 + 28, 4 + 28)), sheet.getpixel((4 + 60 + 28, 4 + 28))
    assert first == (0, 0, 0)
    assert second == (200, 200, 200)
    marks = [sheet.getpixel((4 + 28, 4 + 57)), sheet.getpixel((4 + 60 + 28, 4 + 57))]
    assert marks == [Image.new("RGB", (1, 1), PALETTE[k]).getpixel((0, 0)) for k in (0, 1)]


def writer(tmp_path: Path, num: int, different: int = 0) -> gallery.Writer:
    contents = SampleFormat(kind="image", dtype="uint8", mean=(127.5,) * 3, std=(127.5,) * 3)
    how = SampleConfig(num=num, seed=7, steps=9, guidance=2.0)
    words = tuple(("prompt", f"äpfel {i}") for i in range(different or num))
    return gallery.Writer(tmp_path, contents, Request(how, words=words))


def batch(values: list[float], leader: int) -> Samples:
    """Samples of one grey each, in [-1, 1], made mostly by one of three experts."""
    x_0 = torch.tensor(values)[:, None, None, None].expand(-1, 3, 4, 4)
    weights = torch.full((2, len(values), 3), 0.1)
    weights[:, :, leader] = 0.8
    return Samples(x_0, weights, torch.zeros(2, len(values)), (1.0, 0.5), "top-1", None)


def test_a_picture_says_what_it_is(tmp_path):
    out = writer(tmp_path, 3)
    out.add([2, 0], batch([1.0, -1.0], leader=1))
    with Image.open(tmp_path / "sample-00002.png") as picture:
        assert picture.getpixel((0, 0)) == (255, 255, 255)
        assert picture.info == {
            "Software": "Atoll",
            "prompt": "äpfel 2",
            "seed": "7",
            "index": "2",
            "solver": "euler",
            "steps": "9",
            "guidance": "2.0",
            "expert": "1",
            "strategy": "top-1",
        }


def test_what_is_finished_is_written_in_order_whatever_order_it_came_in(tmp_path):
    out = writer(tmp_path, 4)
    out.add([3], batch([1.0], leader=2))
    out.add([1], batch([0.0], leader=0))
    written = out.finish()
    record = json.loads((tmp_path / "samples.json").read_text())
    assert record["indices"] == [1, 3]
    assert record["prompt"] == ["äpfel 1", "äpfel 3"]
    assert written["experts"] == record["experts"] == [0, 2]
    arrays = np.load(tmp_path / "samples.npy", allow_pickle=False)
    assert arrays[:, 0, 0, 0].tolist() == [0.0, 1.0]


def test_nothing_finished_leaves_nothing(tmp_path):
    out = writer(tmp_path / "new", 2)
    out.open()
    assert (tmp_path / "new").is_dir()
    assert out.finish() == {}
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_known_before_any_work(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AtollError, match="give another --out"):
        writer(tmp_path / "file" / "x", 1).open()


def test_pictures_of_an_earlier_longer_call_go(tmp_path):
    (tmp_path / "sample-00009.png").write_bytes(b"old")
    (tmp_path / "sample-mine.png").write_bytes(b"not ours")
    writer(tmp_path, 1).add([0], batch([0.0], leader=0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sample-00000.png", "sample-mine.png"]


@pytest.mark.parametrize(("different", "num", "columns"), [(3, 9, 3), (1, 9, 3), (9, 9, 3), (17, 36, 6)])
def test_what_is_asked_in_turn_has_a_column_each(tmp_path, different, num, columns):
    out = writer(tmp_path, num, different)
    out.add(range(num), batch([0.0] * num, leader=0))
    out.finish()
    with Image.open(tmp_path / "grid.png") as sheet:
        cell = 4 * 14 + 4  # pictures of 4 are shown 14 times as large, with a gap of 4
        assert (sheet.width - 4) / cell == columns

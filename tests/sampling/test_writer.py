import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atoll.config import SampleConfig
from atoll.errors import AtollError
from atoll.runs import read_json, write_json
from atoll.runs.records import SampleFormat
from atoll.sampling import writer as writing
from atoll.sampling.request import Request
from atoll.sampling.samples import Samples

CONTENTS = SampleFormat(kind="image", dtype="uint8", mean=(127.5,) * 3, std=(127.5,) * 3)


def writer(tmp_path: Path, num: int, different: int = 0) -> writing.Writer:
    how = SampleConfig(num=num, seed=7, steps=9, guidance=2.0)
    words = tuple(("prompt", f"äpfel {i}") for i in range(different or num))
    return writing.Writer(tmp_path, CONTENTS, Request(how, words=words))


def batch(values: list[float], leader: int) -> Samples:
    """Samples of one grey each, in [-1, 1], made mostly by one of three experts."""
    x_0 = torch.tensor(values)[:, None, None, None].expand(-1, 3, 4, 4)
    weights = torch.full((2, len(values), 3), 0.1)
    weights[:, :, leader] = 0.8
    return Samples(x_0, weights, torch.zeros(2, len(values)), (1.0, 0.5), "top-1", None)


def test_a_picture_says_what_it_is(tmp_path):
    out = writer(tmp_path, 3)
    out.add([2, 0], batch([1.0, -1.0], leader=1))
    out.finish()
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
    assert record["version"] == 1
    assert record["indices"] == [1, 3]
    assert record["prompt"] == ["äpfel 1", "äpfel 3"]
    assert written["experts"] == record["experts"] == [0, 2]
    arrays = np.load(tmp_path / "samples.npy", allow_pickle=False)
    assert arrays[:, 0, 0, 0].tolist() == [0.0, 1.0]


def test_nothing_finished_leaves_nothing(tmp_path):
    out = writer(tmp_path / "new", 2)
    out.open((3, 4, 4))
    assert (tmp_path / "new").is_dir()
    assert out.finish() == {}
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_known_before_any_work(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AtollError, match="give another --out"):
        writer(tmp_path / "file" / "x", 1).open((3, 4, 4))


def test_pictures_of_an_earlier_longer_request_go_and_nothing_else(tmp_path):
    before = writer(tmp_path, 3)
    before.add(range(3), batch([0.0] * 3, leader=0))
    before.finish()
    (tmp_path / "sample-00099.png").write_bytes(b"not ours")
    (tmp_path / "sample-mine.png").write_bytes(b"not ours")
    out = writer(tmp_path, 1)
    out.add([0], batch([0.0], leader=0))
    out.finish()
    pictures = sorted(path.name for path in tmp_path.glob("sample-*"))
    assert pictures == ["sample-00000.png", "sample-00099.png", "sample-mine.png"]
    assert read_json(tmp_path / "samples.json")["num"] == 1


def test_a_request_that_cannot_fit_is_refused_with_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "free_bytes", lambda folder: 60 * 10**9)
    with pytest.raises(AtollError, match=r"1,000,000,000 samples need about 4\.3 TB, .* has 60\.0 GB left"):
        writer(tmp_path / "new", 10**9, 1).open((3, 4, 4))
    assert not (tmp_path / "new").exists()
    writer(tmp_path / "new", 10**6, 1).open((3, 4, 4))


def test_what_is_kept_in_memory_does_not_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "LISTED", 8)
    monkeypatch.setattr(writing, "SHOWN", 6)
    monkeypatch.setattr(writing, "TRACED", 4)
    how = SampleConfig(num=200, provenance=True)
    out = writing.Writer(tmp_path, CONTENTS, Request(how))
    for first in range(0, 200, 10):
        out.add(range(first, first + 10), batch([0.5] * 10, leader=first % 3))
        assert len(out._shares) <= 8 and len(out._pixels) <= 6 and len(out._provenance) <= 4
    written = out.finish()
    assert sum(written["makers"].values()) == written["done"] == 200
    assert len(written["experts"]) == 8
    assert np.load(tmp_path / "samples.npy", allow_pickle=False).shape == (200, 3, 4, 4)
    assert len(list(tmp_path.glob("sample-*.png"))) == 200
    assert len(read_json(tmp_path / "provenance.json")["samples"]) == 4


def test_a_folder_is_taken_before_the_first_batch_is_done(tmp_path):
    """Two requests at once have a folder each, however long their first batches take."""
    first = writer(tmp_path / "samples", 2)
    first.open((3, 4, 4))
    assert writing.own_folder(tmp_path / "samples", "another", asked=False).name == "samples-2"
    assert first.finish() == {}
    assert list(tmp_path.iterdir()) == [], "and is given back where nothing comes of it"


def test_a_folder_of_its_own(tmp_path):
    out = tmp_path / "pictures"
    assert writing.own_folder(out, "a", asked=True) == out
    out.mkdir()
    assert writing.own_folder(out, "a", asked=True) == out, "an empty one will do"
    (out / "sample-00099.png").write_bytes(b"somebody's")
    with pytest.raises(AtollError, match="not empty; give a new folder, as --out .*pictures-2"):
        writing.own_folder(out, "a", asked=True)
    assert writing.own_folder(out, "a", asked=False) == tmp_path / "pictures-2"
    write_json(out / "samples.json", {"request": "a"})
    assert writing.own_folder(out, "a", asked=True) == out, "the same request again makes the same"
    with pytest.raises(AtollError, match="not empty"):
        writing.own_folder(out, "b", asked=True)
    write_json(out / "samples.json", {"version": 2, "request": "a"})
    with pytest.raises(AtollError, match=r"samples\.json was written by a newer Atoll .*upgrade atoll"):
        writing.own_folder(out, "a", asked=True)


@pytest.mark.parametrize(("different", "num", "columns"), [(3, 9, 3), (1, 9, 3), (9, 9, 3), (17, 36, 6)])
def test_what_is_asked_in_turn_has_a_column_each(tmp_path, different, num, columns):
    out = writer(tmp_path, num, different)
    out.add(range(num), batch([0.0] * num, leader=0))
    out.finish()
    with Image.open(tmp_path / "grid.png") as sheet:
        cell = 4 * 14 + 4  # pictures of 4 are shown 14 times as large, with a gap of 4
        assert (sheet.width - 4) / cell == columns

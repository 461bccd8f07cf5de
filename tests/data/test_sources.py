"""Every kind of source gives the same samples in a fixed order, from any position."""

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from atoll.config import DataConfig
from atoll.data.arrays import read_idx
from atoll.data.identity import identity_of_files
from atoll.data.samples import Sample, Skipped, Source
from atoll.data.sources import open_source
from atoll.errors import DataError
from tests.data.conftest import SHARED, encoded, needs, picture, pixels


def open_at(path: Path, **settings: Any) -> Source:
    return open_source(DataConfig(source=str(path), **settings))


def everything(source: Source) -> list[Sample | Skipped]:
    return [item for piece in range(source.pieces) for item in source.read(piece)]


def samples(source: Source) -> list[Sample]:
    return [item for item in everything(source) if isinstance(item, Sample)]


def save_images(folder: Path, images: NDArray[Any], name: Callable[[int], str]) -> None:
    for index, image in enumerate(images):
        file = folder / name(index)
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)


def test_the_embedded_set() -> None:
    source = open_source(DataConfig())
    found = samples(source)
    assert len(found) == source.rows == 5000
    assert found[0].values.shape == (1, 28, 28)
    assert len(source.class_names) == 10
    counts = [sum(item.label == name for item in found) for name in source.class_names]
    assert counts == [457, 556, 504, 501, 488, 493, 493, 512, 490, 506]


@needs("data/fashion_5k_28.npz")
def test_the_embedded_set_is_the_original() -> None:
    original = np.load(SHARED / "data/fashion_5k_28.npz", allow_pickle=False)
    found = samples(open_source(DataConfig()))
    np.testing.assert_array_equal(np.stack([item.values[0] for item in found]), original["images"])


def test_a_folder_of_classes(tmp_path: Path) -> None:
    images = pixels(6)
    save_images(tmp_path, images, lambda index: f"{'cats' if index < 2 else 'dogs'}/{index}.png")
    (tmp_path / ".hidden").mkdir()
    Image.fromarray(images[0]).save(tmp_path / ".hidden" / "x.png")
    found = samples(open_at(tmp_path))
    assert [item.name for item in found] == [f"{'cats' if i < 2 else 'dogs'}/{i}.png" for i in range(6)]
    assert [item.label for item in found] == ["cats"] * 2 + ["dogs"] * 4
    np.testing.assert_array_equal(np.stack([item.values for item in found]), images.transpose(0, 3, 1, 2))


def test_captions_beside_images(tmp_path: Path) -> None:
    save_images(tmp_path, pixels(2), lambda index: f"{index}.png")
    (tmp_path / "1.txt").write_text("a small picture\n")
    assert [item.caption for item in samples(open_at(tmp_path))] == [None, "a small picture"]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_captions_by_the_convention_of_the_hub(tmp_path: Path, form: str) -> None:
    save_images(tmp_path, pixels(3), lambda index: f"train/{index}.png")
    rows = [{"file_name": f"{i}.png", "text": f"picture, {i}", "label": i % 2} for i in (2, 0)]
    if form == "csv":
        lines = [
            "file_name,text,label",
            *(f'{row["file_name"]},"{row["text"]}",{row["label"]}' for row in rows),
        ]
    else:
        lines = [json.dumps(row) for row in rows]
    (tmp_path / "train" / f"metadata.{form}").write_text("\n".join(lines))
    found = samples(open_at(tmp_path))
    assert [item.caption for item in found] == ["picture, 0", None, "picture, 2"]
    assert [item.label for item in found] == ["0", None, "0"]  # the table speaks, not the folder


def test_broken_images_are_skipped_and_named(tmp_path: Path) -> None:
    save_images(tmp_path, pixels(3), lambda index: f"{index}.png")
    (tmp_path / "1.png").write_bytes(b"not a picture")
    items = everything(open_at(tmp_path))
    assert isinstance(items[1], Skipped)
    assert items[1].name == "1.png"
    assert "not a readable picture" in items[1].reason
    assert [type(item) for item in items] == [Sample, Skipped, Sample]


def test_grey_first_makes_all_grey_and_the_recipe_overrules(tmp_path: Path) -> None:
    picture(10, mode="L").save(tmp_path / "a.png")
    picture(20).save(tmp_path / "b.png")
    assert [item.values.shape[0] for item in samples(open_at(tmp_path))] == [1, 1]
    assert [item.values.shape[0] for item in samples(open_at(tmp_path, channels=3))] == [3, 3]


def test_arrays_with_labels_names_and_captions(tmp_path: Path) -> None:
    images = pixels(4)
    path = tmp_path / "set.npz"
    np.savez(path, images=images, labels=[1, 0, 1, 1], class_names=["cat", "dog"], captions=list("abcd"))
    source = open_at(path)
    found = samples(source)
    assert source.class_names == ("cat", "dog")
    assert [(item.name, item.label, item.caption) for item in found] == [
        ("set.npz[0]", "dog", "a"),
        ("set.npz[1]", "cat", "b"),
        ("set.npz[2]", "dog", "c"),
        ("set.npz[3]", "dog", "d"),
    ]


def test_the_only_large_array_is_the_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "pen.npz", xy=np.zeros((5, 2, 16), np.float32), character=list("abcab"))
    source = open_at(tmp_path / "pen.npz", label_field="character")
    assert source.kind == "series"
    assert [item.label for item in samples(source)] == list("abcab")


def test_a_large_npy_stays_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "video.npy", np.zeros((3, 1, 4, 8, 8), np.uint8))
    source = open_at(tmp_path / "video.npy")
    assert isinstance(getattr(source, "array", None), np.memmap)
    assert source.kind == "video"
    assert [item.values.shape for item in samples(source)] == [(1, 4, 8, 8)] * 3


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    raw = head + array.tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_find_their_labels(tmp_path: Path, suffix: str) -> None:
    images = pixels(5, channels=1)[..., 0]
    write_idx(tmp_path / f"train-images-idx3-ubyte{suffix}", images)
    write_idx(tmp_path / f"train-labels-idx1-ubyte{suffix}", np.array([3, 1, 4, 1, 5], np.uint8))
    for place in (tmp_path, tmp_path / f"train-images-idx3-ubyte{suffix}"):
        found = samples(open_at(place))
        assert [item.label for item in found] == list("31415")
        np.testing.assert_array_equal(np.stack([item.values[0] for item in found]), images)


@needs("data/fashion_mnist")
def test_idx_reads_the_real_thing() -> None:
    source = open_at(SHARED / "data/fashion_mnist/t10k-images-idx3-ubyte.gz")
    assert source.rows == 10_000
    assert np.bincount([int(item.label or -1) for item in samples(source)]).tolist() == [1000] * 10


def test_reading_can_start_anywhere(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=pixels(10))
    source = open_at(tmp_path / "set.npz", part=4)
    assert source.pieces == 3
    whole = [item.name for item in samples(source)]
    assert whole == [f"set.npz[{index}]" for index in range(10)]
    for piece in range(3):
        names = [item.name for item in source.read(piece)]
        for start in range(6):
            assert [item.name for item in source.read(piece, start)] == names[start:]


def test_the_identity_changes_with_contents_and_not_with_the_place(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        save_images(tmp_path / folder, pixels(3, seed=folder == "c"), lambda index: f"{index}.png")
    first, second, third = (open_at(tmp_path / folder).identity for folder in ("a", "b", "c"))
    assert first == second != third
    (tmp_path / "b" / "0.txt").write_text("a caption")
    assert open_at(tmp_path / "b").identity != first


def test_large_sources_are_known_by_sizes_and_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"12")
    monkeypatch.setattr("atoll.data.identity.HASH_LIMIT", 1)
    monkeypatch.setattr("atoll.data.identity.file_digest", lambda path: pytest.fail("read the whole file"))
    before = identity_of_files([file])
    assert identity_of_files([file]) == before
    file.write_bytes(b"123")
    assert identity_of_files([file]) != before


def test_runs_inside_the_source_are_no_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_images(tmp_path, pixels(2), lambda index: f"{index}.png")
    save_images(tmp_path / "runs", pixels(2), lambda index: f"x/partition/gallery-{index}.png")
    monkeypatch.setenv("ATOLL_RUNS", str(tmp_path / "runs"))
    assert [item.name for item in samples(open_at(tmp_path))] == ["0.png", "1.png"]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda p: p / "fashon-5k",
            "neither an embedded set .* nor an existing path; did you mean 'fashion-5k'",
        ),
        (lambda p: p, "holds nothing of a known kind"),
        (lambda p: _write(p / "a.npz", b"junk"), "cannot be read"),
        (
            lambda p: _save(p / "a.npz", images=np.zeros((2, 4, 4), np.uint8), labels=[1]),
            "2 samples but 1 labels",
        ),
        (lambda p: _save(p / "a.npz", images=np.zeros((0, 4, 4), np.uint8)), "holds no samples"),
        (lambda p: _save(p / "a.npz", one=np.zeros((2, 4)), two=np.zeros((2, 4))), "data.sample_field"),
        (lambda p: _write(p / "a.npy", b"junk"), "cannot be read"),
        (lambda p: _write(p / "a-idx3-ubyte", b"\0\0\x08\x03\0\0\0\x05"), "cannot be read"),
        (lambda p: _write(p / "a.parquet", b"junk"), "give a whole Parquet file"),
        (lambda p: _write(p / "a.tar", b"junk"), "holds no samples"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, make: Callable[[Path], Path], problem: str) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        open_at(make(tmp_path))
    assert "\n" not in str(caught.value)


def _write(path: Path, contents: bytes) -> Path:
    path.write_bytes(contents)
    return path


def _save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        open_at(tmp_path / "a.npy")


def test_an_idx_file_that_ends_early_is_told(tmp_path: Path) -> None:
    write_idx(tmp_path / "x-idx3-ubyte", pixels(2, channels=1)[..., 0])
    raw = (tmp_path / "x-idx3-ubyte").read_bytes()
    (tmp_path / "x-idx3-ubyte").write_bytes(raw[:-1])
    with pytest.raises(DataError, match="it has 127 bytes of values where its header says 128"):
        read_idx(tmp_path / "x-idx3-ubyte")


def test_a_table_without_file_names_is_told(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(encoded(picture(1)))
    (tmp_path / "metadata.csv").write_text("name,text\n0.png,hello\n")
    with pytest.raises(DataError, match="no column 'file_name'"):
        open_at(tmp_path)

"""Parquet, tars and Hub datasets give the samples that were packed into them."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atoll.config import DataConfig
from atoll.data.samples import Sample, Skipped, Source
from atoll.data.sources import open_source
from atoll.data.tars import split_name
from atoll.errors import DataError
from tests.data.conftest import encoded, picture, pixels


def open_at(path: Path | str, **settings: Any) -> Source:
    return open_source(DataConfig(source=str(path), **settings))


def everything(source: Source) -> list[Sample | Skipped]:
    return [item for piece in range(source.pieces) for item in source.read(piece)]


def greys(items: list[Sample | Skipped]) -> list[int | None]:
    """The grey of each picture, None for a skipped one."""
    return [int(item.values[0, 0, 0]) if isinstance(item, Sample) else None for item in items]


def write_parquet(folder: Path, rows_of_files: list[list[int]]) -> None:
    for number, rows in enumerate(rows_of_files):
        table = pa.table(
            {
                "image": [{"bytes": encoded(picture(row)), "path": None} for row in rows],
                "label": [row % 2 for row in rows],
                "text": [f"grey {row}" for row in rows],
            }
        )
        pq.write_table(table, folder / f"data-{number:05d}.parquet", row_group_size=3)


def test_parquet_as_the_hub_writes_it(tmp_path: Path) -> None:
    write_parquet(tmp_path, [[0, 1, 2, 3, 4, 5, 6], [7, 8]])
    source = open_at(tmp_path)
    items = everything(source)
    assert (source.pieces, source.rows) == (2, 9)
    assert greys(items) == list(range(9))
    assert [item.label for item in items if isinstance(item, Sample)] == [str(row % 2) for row in range(9)]
    assert isinstance(items[8], Sample)
    assert (items[8].name, items[8].caption) == ("data-00001.parquet[1]", "grey 8")
    for start in range(8):
        assert greys(list(source.read(0, start))) == list(range(7))[start:]


def test_parquet_of_arrays(tmp_path: Path) -> None:
    series = np.random.default_rng(0).normal(size=(4, 2, 6)).astype(np.float32)
    pq.write_table(pa.table({"x": series.tolist()}), tmp_path / "series.parquet")
    source = open_at(tmp_path)
    assert source.kind == "series"
    found = [item.values for item in everything(source) if isinstance(item, Sample)]
    np.testing.assert_array_equal(np.stack(found), series)


def test_parquet_of_bytes_as_numbers_are_pictures(tmp_path: Path) -> None:
    images = pixels(3, size=4)
    kind = pa.list_(pa.list_(pa.list_(pa.uint8())))
    pq.write_table(pa.table({"image": pa.array(images.tolist(), kind)}), tmp_path / "a.parquet")
    source = open_at(tmp_path)
    assert source.kind == "image"
    found = [item.values for item in everything(source) if isinstance(item, Sample)]
    np.testing.assert_array_equal(np.stack(found), images.transpose(0, 3, 1, 2))


def test_parquet_skips_what_is_no_picture(tmp_path: Path) -> None:
    cells = [{"bytes": encoded(picture(1)), "path": None}, {"bytes": b"no", "path": None}, None]
    pq.write_table(pa.table({"image": cells}), tmp_path / "a.parquet")
    assert greys(everything(open_at(tmp_path))) == [1, None, None]


def test_parquet_without_samples_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"picture": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has fields picture; name the samples by data.sample_field"):
        open_at(tmp_path)


def write_tar(path: Path, files: dict[str, bytes], mode: Any = "w") -> None:
    with tarfile.open(path, mode) as tar:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tar.gz", "w:gz")])
def test_tars_as_webdataset_writes_them(tmp_path: Path, name: str, mode: str) -> None:
    files: dict[str, bytes] = {"__index__.json": b"{}"}
    for index in range(5):
        files[f"x/{index:03d}.png"] = encoded(picture(index))
        files[f"x/{index:03d}.txt"] = f"grey {index}\n".encode()
        files[f"x/{index:03d}.cls"] = str(index % 2).encode()
    write_tar(tmp_path / name, files, mode)
    source = open_at(tmp_path)
    items = everything(source)
    good = [item for item in items if isinstance(item, Sample)]
    assert greys(items) == [0, 1, 2, 3, 4]
    assert [(item.label, item.caption) for item in good] == [(str(i % 2), f"grey {i}") for i in range(5)]
    assert good[0].name == f"{name}/x/000"
    for start in range(7):
        assert greys(list(source.read(0, start))) == [0, 1, 2, 3, 4][start:]


def test_tars_with_json_and_arrays(tmp_path: Path) -> None:
    raw = io.BytesIO()
    np.save(raw, np.full((1, 8), 2.5, np.float32))
    said = json.dumps({"caption": "flat", "label": "line", "other": [1]}).encode()
    write_tar(tmp_path / "a.tar", {"0.npy": raw.getvalue(), "0.json": said})
    source = open_at(tmp_path / "a.tar")
    (item,) = everything(source)
    assert source.kind == "series"
    assert isinstance(item, Sample)
    assert (item.label, item.caption, item.values.tolist()) == ("line", "flat", [[2.5] * 8])


def test_a_tar_that_ends_early_gives_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, {f"{index}.png": encoded(picture(index)) for index in range(4)})
    path.write_bytes(path.read_bytes()[: 2 * 1024 + 540])
    items = everything(open_at(path))
    assert greys(items) == [0, 1, None]
    assert isinstance(items[2], Skipped)
    assert "ends early" in items[2].reason
    assert items[2].unknown


def test_a_pattern_names_several_tars(tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", {"0.png": encoded(picture(number))})
    assert greys(everything(open_at(tmp_path / "[01].tar"))) == [0, 1]


def test_names_fall_apart_at_the_first_dot() -> None:
    assert split_name("a.b/c.seg.PNG") == ("a.b/c", "seg.png")
    assert split_name("c.jpg") == ("c", "jpg")


def test_hub_datasets_are_streamed(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "cats"
    (folder / "data").mkdir(parents=True)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["even", "odd"]),
            "caption": datasets.Value("string"),
        }
    )
    for number in range(2):
        rows = range(number * 5, number * 5 + 5)
        table = datasets.Dataset.from_dict(
            {
                "image": [{"bytes": encoded(picture(row)), "path": None} for row in rows],
                "label": [row % 2 for row in rows],
                "caption": [f"grey {row}" for row in rows],
            },
            features=features,
        )
        table.to_parquet(folder / "data" / f"train-0000{number}-of-00002.parquet")
    source = open_at(f"hub:{folder}")
    assert (source.pieces, source.class_names) == (2, ("even", "odd"))
    items = everything(source)
    assert greys(items) == list(range(10))
    assert [(item.label, item.caption) for item in items[6:8] if isinstance(item, Sample)] == [
        ("even", "grey 6"),
        ("odd", "grey 7"),
    ]
    assert greys(list(source.read(1, 3))) == [8, 9]
    assert open_at(f"hub:{folder}").identity == source.identity
    with pytest.raises(DataError, match="split test"):
        open_at(f"hub:{folder}", split="test")


def test_a_hub_dataset_that_is_not_there_is_told() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(
        DataError, match="hub:nobody/nothing.* cannot be opened.*check name, network and token"
    ):
        open_at("hub:nobody/nothing")

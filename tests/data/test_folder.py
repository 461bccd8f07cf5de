"""Folders of pictures with tables beside them."""

import tracemalloc
from pathlib import Path

import pytest

from atoll.config import DataConfig
from atoll.data.folder import Metadata
from atoll.data.samples import Sample
from atoll.data.sources import open_source
from atoll.errors import DataError
from tests.data.conftest import encoded, picture


def open_at(path: Path):
    return open_source(DataConfig(source=str(path)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(encoded(picture(number)))
    return tmp_path


def test_files_that_a_table_names_and_nobody_has_are_told(folder: Path) -> None:
    (folder / "metadata.csv").write_text("file_name,text\n0.png,zero\n7.png,seven\n8.png,eight\n")
    source = open_at(folder)
    assert source.rows == 3
    assert "metadata.csv names 2 files that are not there, first 7.png" in source.notes


def test_numbers_may_be_captions(folder: Path) -> None:
    (folder / "metadata.jsonl").write_text('{"file_name": "1.png", "text": 12}\n')
    items = [item for item in open_at(folder).read(0) if isinstance(item, Sample)]
    assert [item.caption for item in items] == [None, "12", None]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("metadata.jsonl", '{"file_name": "1.png"}\n{"text": "no name"}\n', "row 2 has no 'file_name'"),
        ("metadata.jsonl", "[1]\n", "no column 'file_name'"),
        ("metadata.jsonl", "{not json\n", "cannot be read"),
        ("metadata.csv", "text,file_name\nalone\n", "no column 'file_name'"),
        ("metadata.csv", "", "no column 'file_name'"),
    ],
)
def test_tables_that_are_wrong_are_told_in_one_line(folder: Path, name: str, text: str, problem: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(DataError, match=problem) as caught:
        open_at(folder)
    assert "\n" not in str(caught.value)


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    peaks = []
    for count in (400, 2_000):
        table = tmp_path / "metadata.csv"
        rows = (f"{number}.png,a caption of some length for picture {number}\n" for number in range(count))
        table.write_text("file_name,text\n" + "".join(rows))
        tracemalloc.start()
        metadata = Metadata([table], DataConfig(source=str(tmp_path)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        said = metadata.of(tmp_path / f"{count - 1}.png")
        assert said == (None, f"a caption of some length for picture {count - 1}")
    assert peaks[1] < 1.2 * peaks[0]

"""Arrays in files: names of classes are found, and files of a wrong length are refused."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.config import DataConfig
from atoll.data.arrays import load_npy, load_npz, read_idx
from atoll.data.samples import Sample
from atoll.data.sources import open_source
from atoll.errors import DataError
from tests.data.conftest import pixels


def labels_of(path: Path, **settings: Any) -> tuple[list[str | None], tuple[str, ...]]:
    source = open_source(DataConfig(source=str(path), **settings))
    return [item.label for item in source.read(0) if isinstance(item, Sample)], source.class_names


@pytest.mark.parametrize("field", ["names", "label_names", "classes", "class_names"])
@pytest.mark.parametrize("kind", [str, bytes])
def test_names_of_classes_by_every_usual_name(tmp_path: Path, field: str, kind: Any) -> None:
    names = np.array(["cat", "dog"]) if kind is str else np.array([b"cat", b"dog"])
    np.savez(tmp_path / "a.npz", images=pixels(4), labels=[1, 0, 1, 1], **{field: names})
    assert labels_of(tmp_path / "a.npz") == (["dog", "cat", "dog", "dog"], ("cat", "dog"))


def test_numbers_that_begin_with_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(4), labels=[2, 1, 2, 2], names=["cat", "dog"])
    assert labels_of(tmp_path / "a.npz") == (["dog", "cat", "dog", "dog"], ("cat", "dog"))


def test_names_of_samples_are_not_names_of_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(4), labels=[1, 0, 1, 1], names=list("abcd"))
    assert labels_of(tmp_path / "a.npz") == (["1", "0", "1", "1"], ())


def test_labels_as_floats_are_whole_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(3), labels=[1.0, 0.0, 1.0])
    assert labels_of(tmp_path / "a.npz")[0] == ["1", "0", "1"]


def test_files_of_a_wrong_length_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", pixels(4))
    whole = (tmp_path / "a.npy").read_bytes()
    for raw in (whole[:-1], whole + b"\0"):
        (tmp_path / "a.npy").write_bytes(raw)
        with pytest.raises(DataError, match="cannot be read"):
            load_npy(tmp_path / "a.npy")
    idx = b"\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02" + bytes(8)
    for name, raw in (("a-idx3-ubyte", idx + b"\0"), ("a-idx3-ubyte.gz", gzip.compress(idx)[:-3] + b"abc")):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(DataError, match="give a whole idx file"):
            read_idx(tmp_path / name)


def test_nobody_is_advised_to_load_unsafely(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.save(tmp_path / "a.npy", objects)
    np.savez(tmp_path / "a.npz", images=objects)
    for load in (lambda: load_npy(tmp_path / "a.npy"), lambda: load_npz(tmp_path / "a.npz")):
        with pytest.raises(DataError, match="Python objects") as caught:
            load()
        assert "allow" not in str(caught.value)

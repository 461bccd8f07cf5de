"""A preview shows samples from all over a source and encodes none."""

from pathlib import Path

import numpy as np
import pytest

from atoll.config import DataConfig, EncodeConfig, RunConfig
from atoll.data.preview import preview, some
from atoll.data.samples import Sample
from atoll.data.sources import open_source
from atoll.errors import DataError
from tests.data.conftest import encoded, picture, pixels


@pytest.mark.parametrize(("rows", "part"), [(1000, 100), (1000, 10_000), (10, 3), (64, 1), (3, 100)])
def test_samples_come_from_all_over(tmp_path: Path, rows: int, part: int) -> None:
    images = np.zeros((rows, 4, 4, 3), np.uint8) + 9
    np.savez(tmp_path / "a.npz", images=images)
    source = open_source(DataConfig(source=str(tmp_path / "a.npz"), part=part))
    places = sorted(int(item.name.split("[")[1][:-1]) for item in some(source, 64))
    assert len(set(places)) == len(places) <= 64
    assert len(places) >= min(rows, 64) * 3 // 4
    assert places[0] == 0
    assert places[-1] >= 0.8 * rows - 1


def test_it_needs_no_models(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=pixels(100), labels=np.arange(100) % 3)
    config = RunConfig(
        name="x",
        data=DataConfig(source=str(tmp_path / "a.npz")),
        encode=EncodeConfig(autoencoder="nobody/nothing", features="nobody/nothing"),
    )
    contents = preview(config, tmp_path / "sheet.png")
    assert (contents.kind, contents.shape, contents.rows) == ("image", (3, 8, 8), 100)
    assert contents.class_names == ("0", "1", "2")
    assert (tmp_path / "sheet.png").is_file()


def test_nothing_to_see_is_told(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"no")
    config = RunConfig(name="x", data=DataConfig(source=str(tmp_path / "in")))
    with pytest.raises(DataError, match=r"no sample that can be read, first a.png"):
        preview(config, tmp_path / "sheet.png")
    (tmp_path / "in" / "b.png").write_bytes(encoded(picture(1)))
    preview(config, tmp_path / "sheet.png")
    source = open_source(config.data)
    assert [type(item) is Sample for item in some(source, 64)] == [False, True]

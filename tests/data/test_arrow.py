"""Streams that end between two batches are refused; whole ones are read whole."""

from pathlib import Path

import pyarrow as pa
import pytest

from atoll.config import DataConfig
from atoll.data.sources import open_source
from atoll.errors import DataError


def write_arrow(folder: Path) -> list[int]:
    """Forty series in four batches, and where each batch ends."""
    table, ends = pa.table({"x": [[float(row)] * 8 for row in range(40)]}), list[int]()
    with (folder / "train.arrow").open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=10):
            writer.write_batch(batch)
            ends.append(file.tell())
    return ends


def test_arrow_that_ends_between_two_batches_is_not_whole(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    ends = write_arrow(tmp_path)
    config = DataConfig(source=f"hub:{tmp_path}")
    assert len(list(open_source(config).read(0))) == 40
    whole = (tmp_path / "train.arrow").read_bytes()
    for end in ends[:-1]:
        (tmp_path / "train.arrow").write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"train\.arrow ends early"):
            open_source(config)

"""The reader gives every sample once per epoch, from any step, and nothing that is not its own."""

import itertools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from atoll.config import DataConfig, PartitionConfig, RunConfig
from atoll.data import store
from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.data.store import Reader, row_digest, sealed, to_pixels, write_cluster_file
from atoll.errors import CorruptError, DataError, IsolationError
from atoll.runs import Run, Stage, file_digest
from atoll.runs.records import ClusterContents


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose samples can be told apart: the first two pixels of sample i count to i."""
    folder = tmp_path_factory.mktemp("store")
    images = np.random.default_rng(0).integers(0, 256, (1700, 4, 4, 3), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.arange(1700) // 256, np.arange(1700) % 256
    np.savez(folder / "set.npz", images=images, labels=np.arange(1700) % 5)
    config = RunConfig(
        name="run",
        data=DataConfig(source=str(folder / "set.npz")),
        partition=PartitionConfig(clusters=3, method="random"),
    )
    run = Run(folder / "run", config)
    prepare(run)
    partition(run)
    return run


def numbers(x_0: torch.Tensor) -> list[int]:
    values = ((x_0 + 1) * 127.5).round().long()
    return (values[:, 0, 0, 0] * 256 + values[:, 0, 0, 1]).tolist()


def stages(run: Run) -> list[Stage]:
    return [run.cluster(index) for index in range(3)]


WINDOWED = 40_000
"""Bytes that hold fewer than all 1,700 samples of 48 bytes: the reader must go by windows of groups."""


@pytest.mark.each(4)
@pytest.mark.parametrize("memory", [WINDOWED, 2**20])
@pytest.mark.parametrize("batch", [1, 64, 1700, 2500])
def test_every_sample_comes_once_per_epoch(run: Run, memory: int, batch: int) -> None:
    reader = Reader(stages(run), batch, seed=1, memory=memory)
    steps = -(-3 * 1700 // batch)
    batches = reader.batches()
    seen = [number for found in itertools.islice(batches, steps) for number in numbers(found.x_0)]
    batches.close()
    epochs = [seen[start : start + 1700] for start in range(0, 3 * 1700, 1700)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(1700))
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("memory", [WINDOWED, 2**20])
@pytest.mark.parametrize("start", [0, 1, 26, 27, 100])
def test_a_batch_depends_on_nothing_but_files_seed_and_step(run: Run, memory: int, start: int) -> None:
    reader = Reader(stages(run), 64, seed=7, memory=memory)
    straight, resumed = reader.batches(), Reader(stages(run), 64, seed=7, memory=memory).batches(start)
    for expected, found in zip(itertools.islice(straight, start, start + 5), resumed, strict=False):
        assert torch.equal(expected.x_0, found.x_0)
        assert torch.equal(expected.cluster, found.cluster)
        assert expected.label is not None
        assert found.label is not None
        assert torch.equal(expected.label, found.label)
    straight.close()
    resumed.close()


def test_labels_and_clusters_belong_to_their_samples(run: Run) -> None:
    own = {}
    for index, stage in enumerate(stages(run)):
        reader = Reader([stage], reader_rows(stage), seed=0)
        batches = reader.batches()
        own.update(dict.fromkeys(numbers(next(batches).x_0), index))
        batches.close()
    reader = Reader(stages(run), 1700, seed=0)
    batches = reader.batches()
    batch = next(batches)
    batches.close()
    assert batch.label is not None
    assert batch.label.tolist() == [number % 5 for number in numbers(batch.x_0)]
    assert batch.cluster.tolist() == [own[number] for number in numbers(batch.x_0)]
    assert reader.clusters == 3
    assert reader.priors == pytest.approx([566 / 1700, 567 / 1700, 567 / 1700])


def reader_rows(stage: Stage) -> int:
    return int(stage.contents.rows)


def test_pixels_come_back_as_they_were(run: Run) -> None:
    reader = Reader(stages(run), 1700, seed=0)
    batches = reader.batches()
    batch = next(batches)
    batches.close()
    assert batch.x_0.dtype == torch.float32
    assert float(batch.x_0.min()) == -1
    assert float(batch.x_0.max()) == 1
    original = np.load(run.config.data.source)["images"][numbers(batch.x_0)]
    np.testing.assert_array_equal(to_pixels(batch.x_0, reader.contents), original)


def test_closing_ends_the_thread_and_errors_reach_the_consumer(run: Run) -> None:
    before = threading.active_count()
    batches = Reader(stages(run), 10, seed=0).batches()
    next(batches)
    assert threading.active_count() > before
    batches.close()
    assert threading.active_count() == before
    reader = Reader([run.cluster(0)], 10, seed=0)
    with sealed(run.cluster(1)):
        batches = reader.batches()
        with pytest.raises(IsolationError):
            next(batches)
    assert threading.active_count() == before


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_one_flipped_bit_is_told_in_one_line(run: Run, tmp_path: Path, place: float) -> None:
    path = run.cluster(2).path / run.cluster(2).contents.parts[0][0]
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[int(len(whole) * place)] ^= 1
    path.write_bytes(damaged)
    try:
        batches = Reader([run.cluster(2)], 10, seed=0).batches()
        with pytest.raises(
            CorruptError,
            match=r"cluster-02/.* damaged .*`atoll partition RECIPE --start-over` makes this part again",
        ):
            next(batches)
    finally:
        path.write_bytes(whole)


def test_a_row_that_is_not_what_was_written_is_told(run: Run, tmp_path: Path) -> None:
    """The file's digest is that of the file, but one row was changed before it was taken."""
    stage = Stage(tmp_path / "cluster-00")
    stage.path.mkdir()
    name = run.cluster(0).contents.parts[0][0]
    table = pq.read_table(run.cluster(0).path / name)
    labels = table["label"].to_pylist()
    labels[3] = (labels[3] + 1) % 5
    forged = table.set_column(table.column_names.index("label"), "label", pa.array(labels, pa.int64()))
    pq.write_table(forged, stage.path / name, row_group_size=store.GROUP)
    contents = run.cluster(0).contents.model_copy(
        update={"parts": ((name, table.num_rows),), "rows": table.num_rows}
    )
    stage.finish({}, [name], contents)
    identity = table["id"][3].as_py().hex()[:12]
    batches = Reader([stage], 10, seed=0).batches()
    with pytest.raises(CorruptError, match=rf"holds a damaged row \({identity}\); delete"):
        next(batches)


def test_the_hash_of_a_row_covers_everything_said_about_it() -> None:
    row = {"sample": b"ab", "label": 1, "caption": "c", "tokens": b"t", "pooled": b"p"}
    changes: list[dict[str, Any]] = [
        {"sample": b"ac"},
        {"label": None},
        {"label": 2},
        {"caption": None},
        {"caption": ""},
        {"tokens": b""},
        {"pooled": None},
        {"sample": b"a", "caption": "bc"},
    ]
    digests = {row_digest({**row, **change}) for change in [{}, *changes]}
    assert len(digests) == 1 + len(changes)


def test_files_are_hashed_on_first_use_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []
    rows: list[bytes] = []

    def hash_file(path: Path) -> str:
        hashed.append(path)
        return file_digest(path)

    def hash_row(row: dict[str, Any]) -> bytes:
        rows.append(row["id"])
        return row_digest(row)

    monkeypatch.setattr(store, "file_digest", hash_file)
    monkeypatch.setattr(store, "row_digest", hash_row)
    reader = Reader(stages(run), 100, seed=0, memory=WINDOWED)
    batches = reader.batches()
    for _ in range(60):  # three and a half epochs
        next(batches)
    batches.close()
    assert len(hashed) == 3
    assert len(rows) == len(set(rows)) == 1700


def test_windows_hold_every_cluster_in_its_natural_share(tmp_path: Path) -> None:
    """Clusters of 60 %, 30 % and 10 %, read by windows of a tenth of the data."""
    shares = (12_000, 6_000, 2_000)
    made = []
    for cluster, rows in enumerate(shares):
        stage = Stage(tmp_path / f"cluster-{cluster:02d}")
        stage.path.mkdir()
        ids = [bytes([cluster]) + row.to_bytes(31, "big") for row in range(rows)]
        table = pa.table(
            {
                "id": pa.array(ids, pa.binary(32)),
                "sample": pa.array([identity[-3:] for identity in ids], pa.binary(3)),
                "label": pa.array([None] * rows, pa.int64()),
                "caption": pa.array([None] * rows, pa.string()),
            }
        )
        write_cluster_file(stage.path / "part-0.parquet", table, 100)
        contents = ClusterContents(
            **{"kind": "image", "shape": (3, 1, 1), "dtype": "uint8", "mean": (0.0,) * 3, "std": (1.0,) * 3},
            **{
                "cluster": cluster,
                "clusters": 3,
                "rows": rows,
                "bytes": rows * 3,
                "group": 100,
                "classes": 0,
            },
            **{"prior": rows / 20_000, "priors": (0.6, 0.3, 0.1), "parts": (("part-0.parquet", rows),)},
        )
        stage.finish({}, ["part-0.parquet"], contents)
        made.append(stage)
    reader = Reader(made, 500, seed=3, memory=12_000)  # 60,000 bytes in all, two windows held
    batches = reader.batches()
    seen: set[tuple[int, int]] = set()
    for batch in itertools.islice(batches, 40):
        counts = torch.bincount(batch.cluster, minlength=3) / 500
        torch.testing.assert_close(counts, torch.tensor([0.6, 0.3, 0.1]), atol=0.09, rtol=0)
        row = batch.x_0[:, 1, 0, 0] * 256 + batch.x_0[:, 2, 0, 0]
        seen.update(zip(batch.cluster.tolist(), row.int().tolist(), strict=True))
    batches.close()
    assert len(seen) == 20_000
    assert batch.label is None


def test_clusters_of_different_samples_are_not_mixed(run: Run, tmp_path: Path) -> None:
    other = Stage(tmp_path / "cluster-01")
    other.path.mkdir()
    other.finish({}, [], run.cluster(1).contents.model_copy(update={"shape": (3, 4, 12)}))
    with pytest.raises(DataError, match="holds other samples than"):
        Reader([run.cluster(0), other], 10, seed=0)


@pytest.mark.thorough
def test_reading_samples_does_not_load_pandas(run):
    """Which takes a second, where it is installed, and is not needed."""
    code = (
        "import sys; from pathlib import Path\n"
        "from atoll.runs import Stage; from atoll.data.store import Reader\n"
        f"stage = Stage(Path({str(run.cluster(0).path)!r})); Reader([stage], 4, 0).first(8)\n"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

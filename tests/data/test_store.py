"""The reader gives every sample once per epoch, from any step, and nothing that is not its own."""

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.config import DataConfig, PartitionConfig, RunConfig
from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.data.store import Reader, open_parquet, sealed, to_pixels
from atoll.errors import CorruptError, IsolationError
from atoll.runs import Run, Stage


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
    return int(stage.contents["rows"])


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


def test_closing_ends_the_thread_and_errors_reach_the_consumer(run: Run, tmp_path: Path) -> None:
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


def test_a_seal_keeps_every_other_stage_shut(run: Run) -> None:
    name = run.cluster(0).contents["parts"][0][0]
    with sealed(run.cluster(0)):
        open_parquet(run.cluster(0), name).close()
        for other in (run.cluster(1), run.data):
            with pytest.raises(IsolationError, match="belongs to another job"):
                open_parquet(other, name)
    open_parquet(run.cluster(1), name).close()


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_one_flipped_bit_is_told_in_one_line(run: Run, tmp_path: Path, place: float) -> None:
    path = run.cluster(2).path / run.cluster(2).contents["parts"][0][0]
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[int(len(whole) * place)] ^= 1
    path.write_bytes(damaged)
    try:
        batches = Reader([run.cluster(2)], 10, seed=0).batches()
        with pytest.raises(
            CorruptError, match=r"damaged .*delete .*cluster-02 and run the same command again$"
        ):
            next(batches)
    finally:
        path.write_bytes(whole)

"""Every sample lands in exactly one cluster, and no cluster is empty."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from atoll.config import DataConfig, PartitionConfig, RunConfig
from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.errors import DataError
from atoll.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", RunConfig(name="run", partition=PartitionConfig(clusters=8)))


def test_the_embedded_set_falls_into_even_clusters(run: Run) -> None:
    prepare(run)
    stage = partition(run)
    sizes = stage.contents["sizes"]
    assert sum(sizes) == 5000
    assert max(sizes) / min(sizes) <= 1.5
    assert sum(stage.contents["priors"]) == pytest.approx(1)
    ids = [
        identity
        for cluster in range(8)
        for name, _ in run.cluster(cluster).contents["parts"]
        for identity in pq.read_table(run.cluster(cluster).path / name)["id"].to_pylist()
    ]
    everything = pq.read_table(run.data.path / run.data.contents["parts"][0][0])["id"].to_pylist()
    assert sorted(ids) == sorted(everything)
    assert (stage.path / "gallery-07.png").is_file()


def test_more_clusters_than_samples_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", images=np.arange(5 * 16, dtype=np.uint8).reshape(5, 4, 4))
    config = RunConfig(
        name="few",
        data=DataConfig(source=str(tmp_path / "few.npz")),
        partition=PartitionConfig(clusters=6),
    )
    run = Run(tmp_path / "run", config)
    prepare(run)
    with pytest.raises(DataError, match="only 5 samples"):
        partition(run)

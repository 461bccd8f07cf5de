"""All samples as one cluster: each once, what is held out apart, the same as the clusters together."""

import pyarrow.parquet as pq

from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.data.pool import pool
from atoll.data.store import Reader
from atoll.runs import Stage


def ids(stage: Stage, kind: str) -> list[bytes]:
    files = sorted(stage.path.glob(f"{kind}-*.parquet"))
    return sorted(row for file in files for row in pq.read_table(file)["id"].to_pylist())


def test_it_holds_what_all_clusters_hold_together(tiny, tmp_path):
    from atoll import config
    from atoll.runs import Run

    run = Run.create(config.load(tiny, ["data.holdout=0.1"]), tiny)
    prepare(run)
    partition(run)
    clusters = [run.cluster(index) for index in range(3)]
    stage = pool(run)
    for kind in ("part", "holdout"):
        together = sorted(row for cluster in clusters for row in ids(cluster, kind))
        assert ids(stage, kind) == together
    reader = Reader([stage], 8, 0)
    assert reader.rows == sum(cluster.contents.rows for cluster in clusters)
    assert stage.contents.priors == (1.0,)
    before = (stage.path / "done.json").stat().st_mtime_ns
    assert pool(run).path == stage.path
    assert (stage.path / "done.json").stat().st_mtime_ns == before, "finished, it is not written again"

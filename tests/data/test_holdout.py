"""What is held out: the same everywhere, in no cluster's samples, with its labels and clusters at hand."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.data import holdout
from atoll.data.encode import prepare
from atoll.data.partition import partition
from atoll.data.parts import Parts
from atoll.data.shares import Assignments
from atoll.data.store import Reader
from atoll.errors import DataError, StaleError
from atoll.runs import Run, inputs
from tests.data.conftest import MakeRun, pixels


def ids_of(texts: list[bytes]) -> Any:
    return np.array([list(hashlib.sha256(text).digest()) for text in texts], np.uint8).reshape(-1, 32)


def resting(run: Run, kind: str = "part") -> dict[bytes, tuple[int, int | None]]:
    """Cluster and label by id, of the files of this kind."""
    rows = {}
    for cluster in range(run.config.partition.clusters):
        for path in sorted(run.cluster(cluster).path.glob(f"{kind}-*.parquet")):
            for row in pq.read_table(path).to_pylist():
                rows[row["id"]] = (cluster, row["label"])
    return rows


def made(make_run: MakeRun, source: Path, share: float, **settings: Any) -> Run:
    run = make_run(source, {"holdout": share}, **settings)
    prepare(run)
    partition(run)
    return run


@given(st.lists(st.binary(min_size=1), min_size=1, unique=True), st.floats(0, 0.999), st.floats(0, 0.999))
def test_it_depends_on_the_sample_and_the_share_alone(texts, one, other):
    ids = ids_of(texts)
    chosen = holdout.is_held_out(ids, one)
    by_hand = [int.from_bytes(bytes(raw[24:]), "big") < int(one * 2**64) for raw in ids]
    assert chosen.tolist() == by_hand
    assert (holdout.is_held_out(ids[::-1], one)[::-1] == chosen).all()
    if one <= other:
        assert not (chosen & ~holdout.is_held_out(ids, other)).any(), "a larger share holds out more"


def test_about_the_share_is_held_out():
    ids = ids_of([str(number).encode() for number in range(4000)])
    assert abs(holdout.is_held_out(ids, 0.1).mean() - 0.1) < 4 * (0.1 * 0.9 / 4000) ** 0.5
    assert not holdout.is_held_out(ids, 0.0).any()


@pytest.mark.parametrize("method", ["features", "random", "labels"])
def test_no_cluster_has_what_is_held_out(make_run, npz, method):
    source = npz(200, labels=np.arange(200) % 4)
    run = made(make_run, source, 0.2, partition={"method": method, "clusters": 2, "fine": 8})
    trained, held = resting(run), resting(run, "holdout")
    assert len(trained) + len(held) == 200
    assert not trained.keys() & held.keys()
    assert held.keys() == {raw for raw in {**trained, **held} if int.from_bytes(raw[24:], "big") < 2**64 / 5}
    contents = run.partition.contents
    assert contents.rows == sum(contents.sizes) == len(trained)
    assert contents.holdout == len(held)
    assert sum(map(sum, contents.labels or ())) == len(trained)
    assert len({cluster for cluster, _ in held.values()}) == 2, "of every cluster"


def test_it_is_the_same_for_another_seed_and_number_of_clusters(make_run, npz):
    source = npz(120)
    runs = [
        made(
            make_run,
            source,
            0.2,
            name=f"run-{seed}-{clusters}",
            seed=seed,
            partition={"clusters": clusters, "fine": 8},
        )
        for seed, clusters in ((0, 2), (7, 3), (0, 1))
    ]
    assert len({frozenset(resting(run, "holdout")) for run in runs}) == 1


def test_it_is_read_with_label_and_cluster(make_run, npz):
    run = made(make_run, npz(200, labels=np.arange(200) % 4), 0.2, partition={"clusters": 2, "fine": 8})
    batch = holdout.of_run(run)
    held = resting(run, "holdout")
    assert len(batch.x_0) == len(held)
    assert sorted(zip(batch.cluster.tolist(), batch.label.tolist(), strict=True)) == sorted(held.values())
    alone = holdout.read([run.cluster(1)])
    assert (alone.x_0 == batch.x_0[batch.cluster == 1]).all()
    assert alone.x_0.min() >= -1
    assert alone.x_0.max() <= 1


def test_some_of_it_has_the_share_of_each_cluster(make_run, npz):
    run = made(make_run, npz(200), 0.3, partition={"clusters": 2, "fine": 8})
    whole, some = holdout.of_run(run), holdout.of_run(run, 20)
    assert len(some.x_0) == 20
    expected = 20 * (whole.cluster == 0).float().mean().item()
    assert abs((some.cluster == 0).sum().item() - expected) <= 1
    first = whole.x_0[whole.cluster == 0][: int((some.cluster == 0).sum())]
    assert (some.x_0[some.cluster == 0] == first).all()
    assert len(holdout.of_run(run, 10_000).x_0) == len(whole.x_0)


def test_readers_never_see_it(make_run, npz):
    run = made(make_run, npz(60), 0.3, partition={"clusters": 2, "fine": 4})
    clusters = [run.cluster(0), run.cluster(1)]
    reader = Reader(clusters, 60, 0)
    assert reader.rows == run.partition.contents.rows
    batches = reader.batches()
    seen = {row.numpy().tobytes() for _ in range(2) for row in next(batches).x_0}
    batches.close()
    assert not seen & {row.numpy().tobytes() for row in holdout.of_run(run).x_0}
    assert len(seen) == reader.rows


def test_by_default_nothing_is_held_out_and_nothing_changes(make_run, npz):
    source = npz(40)
    run = made(make_run, source, 0.0)
    assert holdout.of_run(run) is None
    assert "holdout" not in inputs.partition_from(run)
    assert not list(run.partition.path.rglob("holdout-*"))
    assert pq.read_schema(next(run.partition.path.glob("assignment-*"))).names == ["id", "cluster", "margin"]


def test_another_share_asks_for_another_partition_of_the_same_data(make_run, npz):
    source = npz(60)
    run = made(make_run, source, 0.0)
    before = run.data.record
    other = make_run(source, {"holdout": 0.3})
    assert prepare(other).record == before
    with pytest.raises(StaleError, match="holdout"):
        partition(other)


def test_equal_samples_are_held_out_together_and_counted_once_where_they_are_dropped(make_run, tmp_path):
    images = pixels(50)
    np.savez(tmp_path / "twice.npz", images=np.concatenate([images, images]))
    kept = made(make_run, tmp_path / "twice.npz", 0.3, name="kept")
    assert not resting(kept).keys() & resting(kept, "holdout").keys()
    assert kept.partition.contents.holdout == 2 * len(resting(kept, "holdout"))
    dropped = make_run(tmp_path / "twice.npz", {"holdout": 0.3, "duplicates": "drop"}, name="dropped")
    prepare(dropped)
    partition(dropped)
    assert dropped.partition.contents.holdout == len(resting(dropped, "holdout"))


def test_assigning_by_shares_gives_the_same(make_run, npz, tmp_path):
    source = npz(90)
    run = make_run(source, {"holdout": 0.2, "part": 30}, partition={"clusters": 2, "fine": 4})
    prepare(run)
    shares = Assignments(run)
    for share in shares.missing():
        Assignments(run).make(share)
    partition(run)
    digests = run.partition.contents.digests
    shutil.rmtree(run.partition.path)
    partition(run)
    assert run.partition.contents.digests == digests


def test_a_share_that_holds_out_nothing_is_refused(make_run, npz):
    run = make_run(npz(10), {"holdout": 1e-9})
    prepare(run)
    with pytest.raises(DataError, match="holds out none of 10 samples; give a larger share"):
        partition(run)


def test_parts_tell_kept_from_held_out(make_run, npz):
    run = make_run(npz(50))
    parts = Parts(prepare(run), 0.4)
    name = parts.names[0]
    assert (parts.kept(name) ^ parts.held_out(name)).all()
    assert (parts.held_out(name) == holdout.is_held_out(parts.ids(name), 0.4)).all()
    assert Parts(run.data).kept(name).all()

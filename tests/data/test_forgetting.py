"""Samples at rest without some of them: the rest where it was, every record true."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from atoll import config
from atoll.data import encode, forgetting, partition
from atoll.data.holdout import of_run
from atoll.data.parts import Parts
from atoll.data.samples import Sample
from atoll.data.store import Reader
from atoll.errors import DataError
from atoll.runs import Run, file_digest
from tests.beforehand import TINY


def made(tmp_path, *overrides, count=80):
    """Labelled pictures, the first two of them twice."""
    values = np.random.default_rng(1).integers(0, 255, (count, 28, 28), dtype=np.uint8)
    values[-2:] = values[:2]
    np.savez(tmp_path / "x.npz", images=values, labels=np.arange(count) % 4)
    (tmp_path / "recipe.toml").write_text(TINY)
    changes = [f"data.source='{tmp_path / 'x.npz'}'", "partition.fine=6", *overrides]
    run = Run.create(config.load(tmp_path / "recipe.toml", changes))
    encode.prepare(run)
    partition.partition(run)
    return run, values


def whole(stage):
    return all(file_digest(stage.path / name) == digest for name, digest in stage.record.files.items())


@pytest.mark.parametrize(
    "overrides", [(), ("data.duplicates='drop'",), ("data.holdout=0.2",), ("data.part=16",)]
)
def test_what_is_left_is_whole_and_counted(tmp_path, overrides):
    run, values = made(tmp_path, *overrides)
    gone = {Sample("x", values[k][None]).id for k in (0, 5, 17)}
    rows = sum(forgetting.clusters_of(run, gone).values())
    assert rows == (4 if "drop" not in str(overrides) else 3)  # one of them is there twice
    before = run.partition.contents
    forgetting.take_out(run, gone)
    parts = Parts(run.data, run.config.data.holdout)
    ids = np.concatenate([parts.ids(name) for name in parts.names])
    assert len(ids) == 76
    assert not gone & {bytes(raw) for raw in ids}
    assert sum(len(parts.features(name)) for name in parts.names) == 76
    assert sum(run.data.contents.understood.class_counts.values()) == 76
    after = run.partition.contents
    assert after.rows + after.holdout == before.rows + before.holdout - rows
    assert run.data.contents.rows == after.rows + after.holdout
    assert sum(map(sum, after.labels)) == after.rows
    for stage in (run.data, run.partition, *(run.cluster(k) for k in range(3))):
        assert whole(stage)
    reader = Reader([run.cluster(k) for k in range(3)], 4, 0)
    assert len(reader.first().x_0) == after.rows  # every row's own hash is looked at
    held = of_run(run)
    assert (0 if held is None else len(held.x_0)) == after.holdout
    assert sum(after.priors) == pytest.approx(1)
    assert [run.cluster(k).contents.priors for k in range(3)] == [after.priors] * 3


def test_the_rest_keeps_its_order(tmp_path):
    run, _ = made(tmp_path)
    path = run.cluster(0).path / "part-00000.parquet"
    before = pq.read_table(path)["id"].to_pylist()
    gone = {before[1]}
    forgetting.take_out(run, gone)
    assert pq.read_table(path)["id"].to_pylist() == [raw for raw in before if raw not in gone]


def test_to_take_out_twice_is_to_take_out_once(tmp_path):
    run, values = made(tmp_path)
    gone = {Sample("x", values[3][None]).id}
    forgetting.take_out(run, gone)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    forgetting.take_out(run, gone)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_lists_are_ids_or_names(tmp_path):
    (tmp_path / "a.txt").write_text(f"{'ab' * 32}\n\nsome name.png\n{'g' * 64}\n")
    ids, names = forgetting.wanted(tmp_path / "a.txt", config.DataConfig())
    assert ids == {bytes.fromhex("ab" * 32)}
    assert names == {"some name.png", "g" * 64}
    (tmp_path / "b.jsonl").write_text('{"id": "x"}\n{"other": 1}\n')
    with pytest.raises(DataError, match="without `id` or `name`"):
        forgetting.wanted(tmp_path / "b.jsonl", config.DataConfig())

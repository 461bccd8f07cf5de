"""Every sample lands in exactly one cluster, no cluster is empty, and order does not matter."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from atoll.config import DataConfig, PartitionConfig, RunConfig
from atoll.data import curves
from atoll.data import partition as room
from atoll.data.encode import prepare
from atoll.data.partition import partition, plan_units
from atoll.data.parts import Parts
from atoll.data.rules import load_rule
from atoll.data.store import row_digest
from atoll.errors import ConfigError, CorruptError, DataError, StaleError
from atoll.runs import Run
from tests.data.conftest import SHARED, MakeRun, needs, pixels


def assignment(run: Run) -> dict[bytes, int]:
    """Cluster by id, from the assignment."""
    tables = [pq.read_table(path) for path in sorted(run.partition.path.glob("assignment-*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist() if row["cluster"] is not None]
    return {row["id"]: row["cluster"] for row in rows}


def in_clusters(run: Run) -> list[tuple[bytes, int]]:
    """(id, cluster) of every row in every cluster's files."""
    found = []
    for cluster in range(run.config.partition.clusters):
        stage = run.cluster(cluster)
        assert stage.contents.cluster == cluster
        for name, rows in stage.contents.parts:
            ids = pq.read_table(stage.path / name)["id"].to_pylist()
            assert len(ids) == rows
            assert ids == sorted(ids)  # which is as good as at random
            found += [(identity, cluster) for identity in ids]
    return found


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def test_the_embedded_set_falls_into_even_clusters(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", RunConfig(name="run"))
    prepare(run)
    heard: list[tuple[str, int, int]] = []
    contents = partition(run, progress=lambda *said: heard.append(said)).contents
    assert sum(contents.sizes) == contents.rows == 5000
    assert max(contents.sizes) / min(contents.sizes) <= 1.5
    assert list(contents.priors) == [size / 5000 for size in contents.sizes]
    assert contents.nmi > 0.45  # ten kinds of clothes, by pixels alone
    assert np.array(contents.labels).sum() == 5000
    assert min(contents.margins) > 0
    assert heard[-1] == ("parts gathered", 1, 1)
    everything = pq.read_table(run.data.path / "part-00000-000.parquet")["id"].to_pylist()
    assert sorted(identity for identity, _ in in_clusters(run)) == sorted(everything)
    assert dict(in_clusters(run)) == assignment(run)
    own = run.cluster(3).contents
    assert (own.clusters, own.rows, own.prior) == (8, contents.sizes[3], contents.priors[3])
    assert (own.shape, own.kind, own.classes, own.class_names[0]) == (
        (1, 28, 28),
        "image",
        10,
        "T-shirt/top",
    )
    for cluster in range(8):
        assert size_of(run.partition.path / f"gallery-{cluster:02d}.png") == (8 * 30 + 2, 8 * 30 + 2)
    assert not list(run.partition.path.rglob("units"))


@settings(max_examples=8)
@given(data=st.data())
def test_arbitrary_sizes_clusters_and_seeds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 60), "samples")
    clusters = data.draw(st.integers(1, min(count, 12)), "clusters")
    seed = data.draw(st.integers(0, 2**40), "seed")
    part = data.draw(st.integers(9, 50), "part")
    method = data.draw(st.sampled_from(["features", "random"]), "method")
    order = data.draw(st.permutations(range(count)), "order")
    images = np.random.default_rng(seed).integers(0, 256, (count, 3, 3), dtype=np.uint8)
    images[:, 0, 0] = np.arange(count)  # all different
    found = []
    for number, arranged in enumerate((images, images[order])):
        folder = tmp_path_factory.mktemp("any")
        np.savez(folder / "set.npz", images=arranged)
        config = RunConfig(
            name="run",
            seed=seed,
            data=DataConfig(source=str(folder / "set.npz"), part=part if number == 0 else 64),
            partition=PartitionConfig(clusters=clusters, method=method),
        )
        run = Run(folder / "run", config)
        prepare(run)
        contents = partition(run).contents
        landed = in_clusters(run)
        assert len(landed) == len({identity for identity, _ in landed}) == count
        assert list(contents.sizes) == [sum(k == cluster for _, k in landed) for cluster in range(clusters)]
        assert min(contents.sizes) > 0
        assert sum(contents.priors) == pytest.approx(1)
        assert dict(landed) == assignment(run)
        found.append(dict(landed))
        shutil.rmtree(folder)
    assert found[0] == found[1]


def test_dropped_duplicates_are_in_no_cluster(make_run: MakeRun, npz: Any) -> None:
    images = pixels(30)
    run = make_run(npz(images=np.concatenate([images, images[:9]])), data={"duplicates": "drop", "part": 8})
    prepare(run)
    assert partition(run).contents.rows == 30
    assert len(in_clusters(run)) == 30


def test_rows_carry_their_hashes_labels_and_captions(make_run: MakeRun, npz: Any) -> None:
    names = ["cat", "dog"]
    run = make_run(
        npz(20, labels=np.arange(20) % 2, class_names=names, captions=[f"no {i}" for i in range(20)])
    )
    prepare(run)
    partition(run)
    said = {}
    for cluster in range(2):
        for row in pq.read_table(run.cluster(cluster).path / "part-00000.parquet").to_pylist():
            assert row["sha256"] == row_digest(row)
            said[row["caption"]] = row["label"]
    assert said == {f"no {i}": i % 2 for i in range(20)}


def test_units_cover_everything_once_and_come_from_all_over(
    make_run: MakeRun, npz: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(npz(90), data={"part": 8})
    prepare(run)
    monkeypatch.setattr(room, "UNIT_ROWS", 40)
    units = plan_units(Parts(run.data))
    assert len(units) == 3
    groups = [(name, group) for unit in units for name, group, _ in unit]
    assert sorted(groups) == sorted((name, group) for name, group, _ in Parts(run.data).groups())
    assert [name for name, _, _ in units[0]][:2] == ["part-00000-000.parquet", "part-00003-000.parquet"]
    partition(run)
    assert len(in_clusters(run)) == 90
    assert [name for name, _ in run.cluster(0).contents.parts] == [f"part-0000{i}.parquet" for i in range(3)]


@pytest.mark.parametrize("stop_at", ["parts assigned", "parts gathered"])
def test_an_interrupted_partition_goes_on_to_the_same_files(
    make_run: MakeRun, npz: Any, monkeypatch: pytest.MonkeyPatch, stop_at: str
) -> None:
    monkeypatch.setattr(room, "UNIT_ROWS", 40)
    path = npz(90)
    runs = [make_run(path, data={"part": 16}, name=name) for name in ("whole", "stopped")]
    for run in runs:
        prepare(run)
    partition(runs[0])

    def stop(what: str, done: int, total: int) -> None:
        if what == stop_at and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition(runs[1], progress=stop)
    assert not runs[1].partition.done
    partition(runs[1])
    assert files_of(runs[0].partition.path) == files_of(runs[1].partition.path)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_the_labels_can_be_the_clusters(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz(30, labels=np.arange(30) % 3), partition={"clusters": 3, "method": "labels"})
    prepare(run)
    contents = partition(run).contents
    assert contents.nmi == pytest.approx(1)
    assert contents.labels == ((10, 0, 0), (0, 10, 0), (0, 0, 10))


def test_labels_are_needed_to_partition_by_them(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz(30), partition={"method": "labels"})
    prepare(run)
    with pytest.raises(DataError, match="0 labels for 2 clusters"):
        partition(run)
    assert not run.partition.path.exists()


@pytest.mark.parametrize("method", ["features", "random"])
def test_new_data_join_without_moving_the_old(make_run: MakeRun, npz: Any, method: str) -> None:
    images = pixels(80)
    old = make_run(
        npz(images=images[:50], name="old.npz"), partition={"clusters": 4, "method": method}, name="old"
    )
    prepare(old)
    partition(old)
    like = {"clusters": 4, "like": str(old.path)}
    new = make_run(npz(images=images, name="new.npz"), partition=like, name="new", seed=99)
    prepare(new)
    partition(new)
    before, after = assignment(old), assignment(new)
    assert len(after) == 80
    assert {identity: after[identity] for identity in before} == before


def test_what_cannot_be_taken_over_is_told(make_run: MakeRun, npz: Any, tmp_path: Path) -> None:
    path = npz(40)
    with pytest.raises(DataError, match="holds no finished partition"):
        _partition(make_run(path, partition={"like": str(tmp_path / "nowhere")}))
    old = make_run(path, name="old")
    _partition(old)
    with pytest.raises(DataError, match="has clusters = 2 and this recipe 3"):
        _partition(make_run(path, partition={"like": str(old.path), "clusters": 3}))
    rule = old.partition.path / "fine.npy"
    rule.write_bytes(rule.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptError, match=r"fine.npy is damaged"):
        load_rule(old.partition)


def _partition(run: Run) -> None:
    prepare(run)
    partition(run)


def test_a_second_call_does_nothing_and_other_settings_are_told(make_run: MakeRun, npz: Any) -> None:
    path = npz(40)
    run = make_run(path)
    _partition(run)
    before = files_of(run.partition.path)
    partition(run)
    assert files_of(run.partition.path) == before
    with pytest.raises(StaleError, match="made with other partition"):
        partition(make_run(path, partition={"clusters": 3}))
    make_run(path).partition.clear()
    partition(make_run(path, partition={"clusters": 3}))
    assert run.partition.contents.clusters == 3


def test_an_empty_cluster_is_told(make_run: MakeRun, npz: Any, tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("name,cluster\n" + "".join(f"set.npz[{i}],1\n" for i in range(20)))
    run = make_run(npz(20), partition={"method": "file", "file": str(tmp_path / "all.csv"), "clusters": 3})
    prepare(run)
    with pytest.raises(DataError, match="no sample falls into cluster 0, 2"):
        partition(run)


def test_more_clusters_than_samples_is_refused(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz(5), partition={"clusters": 6})
    prepare(run)
    with pytest.raises(DataError, match="partition.clusters = 6 but there are only 5 samples"):
        partition(run)
    assert not run.partition.path.exists()


def test_equal_samples_cannot_fill_clusters(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz(images=np.zeros((9, 4, 4), np.uint8)))
    prepare(run)
    with pytest.raises(DataError, match="tell only 1 samples apart for 2 clusters"):
        partition(run)


def test_a_damaged_part_is_told(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz(40))
    prepare(run)
    path = run.data.path / "part-00000-000.parquet"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match="part-00000-000.parquet is damaged"):
        partition(run)


@pytest.mark.parametrize("wrong", [{"method": "file"}, {"file": "x.csv"}, {"like": "x", "method": "random"}])
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, Any]) -> None:
    from atoll.config import validate

    with pytest.raises(ConfigError):
        validate({"name": "x", "partition": wrong}, "test")


@needs("data/pen_trajectories_64x2.npz")
def test_series_fall_into_clusters_too(make_run: MakeRun) -> None:
    path = SHARED / "data/pen_trajectories_64x2.npz"
    run = make_run(path, data={"layout": "last", "label_field": "character"}, partition={"clusters": 6})
    prepare(run)
    contents = partition(run).contents
    assert contents.shape == (2, 64)
    assert max(contents.sizes) / min(contents.sizes) <= 1.5
    assert contents.nmi > 0.25
    assert size_of(run.partition.path / "gallery-00.png") == (
        8 * (curves.WIDTH + 2) + 2,
        8 * (curves.HEIGHT + 2) + 2,
    )


def test_the_unit_of_a_channel_does_not_matter(make_run: MakeRun, tmp_path: Path) -> None:
    """Two kinds that differ in the channel of small numbers only, beside one of huge noise."""
    random = np.random.default_rng(0)
    kind = np.arange(200) % 2
    wave = np.sin(np.linspace(0, 6, 32)) * np.where(kind, 1, -1)[:, None]
    small = wave + 0.1 * random.normal(size=(200, 32))
    huge = 1e6 * 0.3 * random.normal(size=(200, 32)) + 1e6
    np.savez(tmp_path / "s.npz", x=np.stack([small, huge], axis=1).astype(np.float32), labels=kind)
    run = make_run(tmp_path / "s.npz")
    prepare(run)
    assert partition(run).contents.nmi == pytest.approx(1)


def test_what_done_says_is_json(make_run: MakeRun, npz: Any) -> None:
    run = make_run(npz(20))
    _partition(run)
    json.loads((run.partition.path / "done.json").read_text())

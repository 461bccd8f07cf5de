"""Files by stage: the same as by looking at every path, and no more looks than there are files."""

from pathlib import Path

import pytest

from atoll import config
from atoll.net.protocol import File
from atoll.net.shelves import Shelves, folder_of
from atoll.runs import Run, graph

NAMES = ("done.json", "started.json", "part.parquet", "metrics.jsonl", "previews/step-4.png")
STATES = ("state/latest.json", "state/step-00000004.safetensors", "state/step-00000012.safetensors")


@pytest.fixture
def run(tiny):
    return Run(Path("nowhere"), config.load(tiny))


@pytest.fixture
def table(run):
    folders = [folder_of(node) for node in graph.nodes(run)]
    paths = [f"{folder}/{name}" for folder in folders for name in (*NAMES, *STATES)]
    paths += ["source/a.npz", "units/data.json", "experts/007/done.json"]
    return {path: File(path=path, sha256="0" * 64, size=1) for path in paths}


def test_every_stage_has_its_own(run, table):
    shelves = Shelves(run, table)
    for node in graph.nodes(run):
        folder = folder_of(node)
        assert set(shelves.finished(node)) == {f"{folder}/done.json", f"{folder}/part.parquet"}
        shown = {f"{folder}/{name}" for name in NAMES if name != "started.json"}
        assert set(shelves.finished(node, shown=True)) == shown
        assert set(shelves.all(node)) == {path for path in table if path.startswith(f"{folder}/")}
        assert shelves.step(node) == 12
    assert list(shelves.source()) == ["source/a.npz"]
    assert Shelves(run, {}).step(graph.node(run, "expert 0")) == 0


def test_clusters_are_within_the_partition_and_not_its_files(run, table):
    shelves, partition = Shelves(run, table), graph.node(run, "partition")
    assert not any("cluster-" in path for path in shelves.finished(partition))
    assert any("cluster-" in path for path in shelves.all(partition))


def test_a_table_is_looked_through_once(run, table):
    """However many stages ask: what follows a result must not take the square of a run."""
    looks = []

    class Counted(dict[str, object]):
        def __iter__(self):
            looks.append(1)
            return super().__iter__()

    shelves = Shelves(run, Counted(table))
    for node in graph.nodes(run):
        list(shelves.finished(node)), list(shelves.all(node)), shelves.step(node)
    assert len(looks) == 1

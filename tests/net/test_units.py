"""A run in units, each on a machine of its own, is the run that one machine makes."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from atoll import config
from atoll.errors import RunError
from atoll.net import units
from atoll.net.protocol import File
from atoll.runs import Run, graph
from tests.net.doing import PINNED, RUN, Network

JUDGED = ["at_end=true", "num=8", "features=['pixels']", "reference=64", "bootstrap=2", "routing=8"]
SETTINGS = [*PINNED, *(f"evaluate.{one}" for one in JUDGED)]


def made_alone(tiny, name="alone"):
    """Every stage one after the other, here."""
    run = Run.create(config.load(tiny, [*SETTINGS, f"name='{name}'"]), tiny)
    for node in graph.made(run):
        node.make()
    return run


@pytest.fixture
def network(tiny, tmp_path):
    return Network(config.load(tiny, [*SETTINGS, "name='alone'"]), tmp_path / "network")


@pytest.mark.thorough
def test_from_images_to_samples_the_same_bits(tiny, network):
    alone, together = made_alone(tiny), network.finish()
    for node in (one for one in graph.nodes(alone) if not one.kind.page):
        twin = graph.node(together, node.name)
        assert twin.stage.record == node.stage.record, node.name
        for file in node.stage.record.files:
            assert (twin.stage.path / file).read_bytes() == (node.stage.path / file).read_bytes()
    drawn = [np.load(run.samples.path / "samples.npy") for run in (alone, together)]
    assert np.array_equal(*drawn)
    assert units.finished(network.run, network.table)
    assert "evaluation" in network.names and network.roles["evaluation"] == "evaluate"
    assert {"data / cut", "data / 0", "data / 1", "data / 2", "data", "partition / cut", "partition"} <= {
        *network.names
    }
    assert [name for name in network.names if name.startswith("expert 1")] == [
        "expert 1 @ 0..4",
        "expert 1 @ 4..8",
        "expert 1 @ 8..10",
    ]
    chain = [network.chains[f"expert 1 @ {part}"] for part in ("0..4", "4..8", "8..10")]
    assert [len(part) for part in chain] == [3, 3, 2]
    assert chain[0][-1] == chain[1][0] and chain[1][-1] == chain[2][0]
    state = next(path for path in network.table if path.startswith("experts/01/state/step-"))
    assert network.table[state].sha256 == chain[2][-1], "the last link is the hash of the state's file"
    assert state.endswith("step-00000010.safetensors"), "older states are gone"
    assert not any(path.endswith("started.json") for path in network.table)


def test_the_chain_does_not_depend_on_the_cut(network, tiny, tmp_path):
    while any(unit.role != "train" for unit in network.ready()):
        network.do(network.ready()[0])
    other = Network(network.config, tmp_path / "other", segment=6)
    shutil.copytree(network.folder / "files", other.folder / "files", dirs_exist_ok=True)
    other.table |= network.table
    for one in (network, other):
        while (unit := next((unit for unit in one.ready() if unit.stage == "expert 2"), None)) is not None:
            one.do(unit)
    links = [
        list(dict.fromkeys(link for name, chain in one.chains.items() for link in chain))
        for one in (network, other)
    ]
    assert links[0] == links[1] and len(links[0]) == 6


def table(*paths):
    return {path: File(path=path, sha256="0" * 64, size=1) for path in paths}


@pytest.fixture
def plan(network):
    """The units that a table of files leaves to do."""
    return lambda *paths: units.ready(network.run, table(*paths), lambda file: b"{}", network.sizes)


DONE = ["data/done.json", "partition/done.json", *(f"partition/cluster-0{k}/done.json" for k in range(3))]


def test_nothing_comes_before_what_it_reads(plan):
    assert [unit.name for unit in plan()] == ["data / cut"]
    assert [unit.name for unit in plan("data/done.json")] == ["partition / cut"]
    assert [unit.stage for unit in plan(*DONE)] == ["router", "expert 0", "expert 1", "expert 2"]
    experts = [*DONE, *(f"experts/0{k}/done.json" for k in range(3))]
    assert [unit.name for unit in plan(*experts)] == ["router @ 0..4"]
    drawn = [(unit.name, unit.role) for unit in plan(*experts, "router/done.json")]
    assert drawn == [("samples", "draw"), ("evaluation", "evaluate")]


def test_a_unit_reads_its_own_cluster_and_its_own_state_alone(plan):
    own = ["experts/01/state/step-00000004.safetensors", "experts/01/state/latest.json"]
    rows = ["partition/cluster-00/part-00000.parquet", "partition/cluster-01/part-00000.parquet"]
    other = ["experts/00/state/step-00000008.safetensors", "data/part-00000-000.parquet"]
    unit = next(one for one in plan(*DONE, *own, *rows, *other) if one.stage == "expert 1")
    assert (unit.first, unit.last, unit.every) == (4, 8, 2)
    assert {file.path for file in unit.inputs} == {*own, rows[1], "partition/cluster-01/done.json"}


def test_a_slow_machine_gets_a_shorter_segment(network):
    sizes = units.Sizes(run=RUN, segment=8, every=2, price=10, flops={"expert 0": 10e12})
    unit = next(
        one
        for one in units.ready(network.run, table(*DONE), lambda file: b"", sizes)
        if one.stage == "expert 0"
    )
    assert (unit.last, unit.work, unit.price) == (8, 8e12, 80)
    short = units.shortened(unit, 5)
    assert (short.name, short.last, short.work, short.price) == ("expert 0 @ 0..4", 4, 4e12, 40)
    assert units.shortened(unit, 1).last == 2, "never less than one link of the chain"
    assert units.shortened(unit, 100) == unit


def test_what_comes_from_elsewhere_must_be_here(tiny, tmp_path):
    (tmp_path / "init").mkdir()
    run = Run(Path("nowhere"), config.load(tiny, [f"expert.init='{tmp_path / 'init'}'"]))
    with pytest.raises(RunError, match="init 0 comes from elsewhere; make it here first"):
        units.ready(run, {}, lambda file: b"", units.Sizes(run=RUN, segment=4, every=2))

"""The graph knows every stage, and nobody else has to: a stage is added, and nothing else is touched."""

import contextlib
import os
import subprocess
import sys

import pytest

from atoll import plan
from atoll.config import RunConfig, validate
from atoll.errors import ConfigError
from atoll.launch import driver
from atoll.launch.driver import Screen
from atoll.plan import sums
from atoll.runs import Run, graph
from atoll.runs.graph import Kind
from atoll.runs.survey import survey
from atoll.storage.mirror import Mirror
from tests import commands


def run_of(tmp_path, **sections):
    return Run(tmp_path, validate({"name": "a", "partition": {"clusters": 3}, **sections}, "a test"))


def names(nodes):
    return [node.name for node in nodes]


def test_every_stage_comes_after_what_it_reads(tmp_path):
    run = run_of(tmp_path, student={"data": "drawn", "few": {}})
    order = names(graph.made(run))
    assert len(order) == len(set(order))
    for node in graph.made(run):
        for before in node.inputs:
            assert order.index(before.name) < order.index(node.name), (node.name, before.name)
    experts, drawn = [f"expert {k}" for k in range(3)], [f"drawn {k}" for k in range(3)]
    expected = ["data", "partition", "router", *experts, *drawn, "student", "few-step", "samples", "report"]
    assert order == expected


def test_an_expert_reads_its_own_cluster_and_nothing_else(tmp_path):
    run = run_of(tmp_path)
    assert names(graph.node(run, "expert 1").reads) == ["cluster 1"]
    assert names(graph.node(run, "expert 1").inputs) == ["partition"]
    assert graph.node(run, "expert 1").records == []


def test_only_what_a_recipe_asks_for(tmp_path):
    assert "router" not in names(graph.nodes(run_of(tmp_path, partition={"clusters": 1})))
    with pytest.raises(ConfigError, match=r"the recipe has no \[student\]"):
        graph.node(run_of(tmp_path), "student")
    with pytest.raises(ConfigError, match="there is no expert 7: this run has experts 0 to 2"):
        graph.node(run_of(tmp_path), "expert 7")
    with pytest.raises(ConfigError, match="there is no stage 'moon'"):
        graph.node(run_of(tmp_path), "moon")


def test_commands_make_stages(tmp_path):
    run = run_of(tmp_path, student={"data": "drawn", "few": {}})
    assert names(graph.of_command(run, "prepare")) == ["data"]
    assert names(graph.of_command(run, "expert", 2)) == ["expert 2"]
    assert names(graph.of_command(run, "student")) == ["drawn 0", "drawn 1", "drawn 2", "student", "few-step"]


def test_what_is_made_from_a_stage(tmp_path):
    run = run_of(tmp_path, student={})
    assert names(graph.after(run, ["router"])) == ["router", "student", "samples", "report"]
    assert names(graph.after(run, ["expert 1"])) == ["expert 1", "student", "samples", "report"]


def test_stages_lie_where_the_run_says(tmp_path):
    run = run_of(tmp_path, student={"data": "drawn", "few": {}})
    places = {
        "data": run.data,
        "partition": run.partition,
        "cluster 1": run.cluster(1),
        "expert 2": run.expert(2),
        "router": run.router,
        "drawn 0": run.drawn(0),
        "student": run.student,
        "few-step": run.few_step,
        "samples": run.samples,
        "report": run.report,
    }
    for name, stage in places.items():
        assert graph.node(run, name).stage.path == stage.path


def test_whoever_makes_a_stage_is_there(tmp_path):
    for kind in graph.KINDS:
        assert kind.part_of or callable(graph.resolve(kind.make)), kind.name
        if isinstance(kind.made_from, str):
            assert callable(graph.resolve(kind.made_from))
        if kind.parts:
            assert callable(graph.resolve(kind.parts))


def test_the_plan_counts_what_the_graph_trains(tmp_path):
    run = run_of(tmp_path, student={"few": {}}, plan={"shape": [1, 28, 28]})
    trained = {node.name for node in graph.nodes(run) if node.training is not None}
    assert set(plan.plan(run.config)["jobs"]) == trained


def test_what_can_run_beside_experts_shares_the_machine_with_them(tmp_path):
    run = run_of(tmp_path, start={}, student={"few": {}})
    assert sums.beside_experts(run.config) == {"router", "expert 0", "expert 1", "expert 2"}
    assert sums.beside_experts(run_of(tmp_path, partition={"clusters": 1}).config) == {"expert 0"}


def test_a_stage_is_known_by_its_folder(tmp_path):
    run = run_of(tmp_path, student={})
    assert graph.of_stage(run, run.student).name == "student"
    assert graph.of_stage(run, run.expert(1)).name == "expert 1"


MODULE = '''
from atoll.runs import Run, Stage
from atoll.runs.records import Contents

def made_from(run: Run, index: int):
    return {"router": run.router.digest}

def count(run: Run) -> Stage:
    """How large the router is."""
    stage = run.stage("weighed")
    if stage.begin(made_from(run, 0)):
        size = (run.router.path / "weights.safetensors").stat().st_size
        (stage.path / "size.json").write_text(str(size))
        stage.finish(made_from(run, 0), ["size.json"], Contents.model_validate({"size": size}))
    return stage
'''
CUSTOMIZE = """
import atoll.runs.graph as graph
import weighing
graph.KINDS = (*graph.KINDS, graph.Kind("weighed", weighing.made_from, "weighing:count",
    reads=lambda config, index: ["router"], wanted=lambda config: config.partition.clusters > 1, alone=True))
"""


@pytest.fixture
def weighed(tmp_path, monkeypatch):
    """A stage more: a module that makes it and a line of the graph, known to every process."""
    (tmp_path / "weighing.py").write_text(MODULE)
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZE)
    (tmp_path / commands.FORKED).touch()
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.syspath_prepend(str(tmp_path))
    import weighing  # type: ignore[import-not-found]

    kind = Kind(
        "weighed",
        weighing.made_from,
        "weighing:count",
        reads=lambda config, index: ["router"],
        wanted=lambda config: config.partition.clusters > 1,
        alone=True,
    )
    monkeypatch.setattr(graph, "KINDS", (*graph.KINDS, kind))


def quiet():
    return Screen(lambda: contextlib.nullcontext(lambda statuses: None), lambda: contextlib.nullcontext(None))


@pytest.mark.usefixtures("weighed")
def test_a_stage_that_is_added_is_run_listed_mirrored_and_cleared(prepared, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    settings = ["expert.steps=1", "router.steps=1", "sample.steps=1", "sample.num=2"]
    run = prepared(*settings)
    assert names(survey(run).left)[-1] == "weighed", "listed"
    driver.drive(run, "local", quiet())
    stage = run.stage("weighed")
    assert stage.contents.facts()["size"] == (run.router.path / "weights.safetensors").stat().st_size, "run"
    before = stage.digest
    stored = Run(run.path, run.config.model_copy(update={"launch": _launch(run.config, str(store))}))
    driver.drive(stored, "local", quiet())
    mirror = Mirror.of(stored)
    assert mirror.is_done(stage), "mirrored"
    changed = prepared_again(stored, "router", steps=2)
    driver.drive(changed, "local", quiet(), start_over=True)
    assert stage.digest != before or stage.record.made_from == {"router": changed.router.digest}, "cleared"


def prepared_again(run, section, **changes):
    part = getattr(run.config, section).model_copy(update=changes)
    return Run(run.path, run.config.model_copy(update={section: part}))


def _launch(config: RunConfig, store: str):
    return config.launch.model_copy(update={"store": store})


def test_the_graph_loads_without_torch():
    code = "import sys, atoll.runs.graph, atoll.runs.survey; print({'torch', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


def test_who_makes_a_stage_is_known_by_its_name():
    assert graph.makers("expert 3") == graph.makers("router") == ["atoll.train.jobs"]
    assert graph.makers("cluster 0") == graph.makers("0123456789ab") == []

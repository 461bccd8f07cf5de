"""What experts begin with travels to machines that have nothing of the run: a start, or a foreign expert."""

import contextlib

import pytest

from atoll import config
from atoll.launch import driver, leased
from atoll.launch.driver import Screen
from atoll.runs import Run, graph
from atoll.storage.mirror import Mirror

QUICK = ["expert.steps=1", "router.steps=1", "sample.steps=1", "sample.num=2", "launch.gpus=0"]
QUICK += ["partition.clusters=3", 'launch.slurm={cluster="local"}', "expert.precision=float32"]


def quiet():
    return Screen(lambda: contextlib.nullcontext(lambda statuses: None), lambda: contextlib.nullcontext(None))


def machine(folder, data, store, name, *settings):
    """A machine that has nothing of the run yet."""
    resolved = config.load(data / "run.toml", [*QUICK, f"launch.store='{store}'", *settings])
    run = Run(folder / name / "tiny", resolved)
    run.path.mkdir(parents=True)
    return run


@pytest.fixture
def place(tmp_path, _tiny_data):
    """Give machines around a store that has data and clusters."""
    store = tmp_path / "store"
    store.mkdir()

    def make(name, *settings):
        run = machine(tmp_path, _tiny_data, store, name, *settings)
        if name == "driver":
            for stage in ("data", "partition"):
                (run.path / stage).symlink_to(_tiny_data / stage)
            leased.look(run)
        return run

    return make


@pytest.mark.parametrize("kind", ["start", "init"])
@pytest.mark.thorough(kind="start")
def test_an_expert_elsewhere_downloads_what_it_begins_with(place, finished, kind):
    begin = "start.steps=1" if kind == "start" else f"expert.init='{finished.expert(0).path}'"
    first = place("driver", begin)
    leased.work(graph.node(first, "start" if kind == "start" else "init 0"))
    other = place("other", begin)
    leased.work(graph.node(other, "expert 1"))
    began = first.start if kind == "start" else finished.expert(0)
    assert other.expert(1).record.made_from["init"] == began.digest
    assert Mirror.of(first).is_done(first.expert(1))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "on"), [("start", "slurm"), ("init", "ray")])
@pytest.mark.thorough
def test_a_whole_run_on_an_engine(place, finished, request, kind, on):
    begin = "start.steps=1" if kind == "start" else f"expert.init='{finished.expert(0).path}'"
    run = place("driver", begin)
    for name in ("router",) if kind == "start" else ("router", "init 0", "expert 1", "expert 2"):
        leased.work(graph.node(run, name))  # here, in a moment: one expert shows what travels
    request.getfixturevalue("ray" if on == "ray" else "_forge")
    driver.drive(run, on, quiet())
    began = run.start if kind == "start" else finished.expert(0)
    assert {run.expert(k).record.made_from["init"] for k in range(3)} == {began.digest}
    assert run.report.done

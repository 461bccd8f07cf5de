"""Whole runs on a real Ray cluster of fake machines with different resources, which die on demand."""

import logging
import subprocess
import sys
import time
from typing import Any

import pytest

from atoll.launch import driver, on_ray
from atoll.plan import plan
from atoll.runs import graph
from atoll.runs.known import known
from atoll.storage import leases
from atoll.storage.mirror import Mirror
from atoll.train import jobs
from tests import commands, s3
from tests.holding import held
from tests.machines import LONG, Machines, events, files_of, steps_uploaded, wait_for

pytestmark = pytest.mark.slow

ON_AN_ISLAND = "launch.resources={island=1}"
"""Not on the head, with which the cluster would be lost."""


@pytest.fixture
def place(store, tiny, tmp_path, cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    machines = Machines(store, tiny, tmp_path)
    machines.settings += ["launch.gpus=0"]
    yield machines
    machines.close()


def at_work(cluster, index):
    """The machines that have begun an expert."""
    return [
        node
        for node in cluster.islands
        if (cluster.scratch / node.node_id[:16] / "tiny" / "experts" / f"{index:02d}" / "state").is_dir()
    ]


def clear(cluster):
    subprocess.run(["rm", "-rf", *map(str, cluster.scratch.iterdir())], check=True)


def seed(place, run, *settings, trained):
    """Begin with a run of which only these jobs are done."""
    for name in trained:
        graph.node(run, name).make()
    place.seed(run.path, *settings, trained=trained)


def on_local(place, *settings):
    """The same run by `--on local`, without a store."""
    sets = [part for text in settings for part in ("--set", text)]
    environment = {"ATOLL_RUNS": str(place.folder / "local")}
    done = commands.run("run", place.recipe, "--on", "local", *sets, environment=environment)
    assert done.returncode == 0, done.stderr
    return place.run("local", *settings)


def every_task(cluster):
    """Tasks that Ray has heard of, with all that it knows of them."""
    from ray.util.state import list_tasks

    return list_tasks(address=cluster.dashboard, limit=10_000, detail=True)


def tasks_of(cluster, wanted, before):
    """Name, machines and resources of every new task, once Ray has heard of all wanted ones.

    Other tests have had jobs of the same names on this cluster: `before` are the ids of theirs.
    """
    for _ in range(12_000):  # no measure of time
        found: dict[str, Any] = {}
        for task in (task for task in every_task(cluster) if task.task_id not in before):
            machines, _ = found.setdefault(task.name, (set(), task.required_resources))
            machines.add(task.node_id)
        if wanted <= found.keys():
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def samples_of(run):
    """What was drawn, byte by byte."""
    return [(run.path / "samples" / name).read_bytes() for name in ("samples.npy", "grid.png")]


def submitted(command):
    """The job's end; a cluster that has just started may not take jobs yet, and says so."""
    for _ in range(1200):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        if "No available agent" not in done.stderr + done.stdout:
            return done
        time.sleep(0.5)
    return done


@pytest.mark.thorough
def test_a_whole_run_submitted_from_a_laptop_is_the_run_here(place, cluster):
    """Images to samples by `ray job submit`: every stage on the cluster, bit for bit as on one machine."""
    clear(cluster)
    place.settings[-1] = "launch.gpus=1"
    # Three parts, so that encoding and assigning are spread as well.
    settings = ["partition.clusters=2", "data.part=1700"]
    settings += ["launch.threads=1"]  # a student that is alone on a machine would have all of its cores
    settings += [f"student.{text}" for text in ("steps=6", "batch=8", "log_every=2", "save_every=3")]
    sets = [part for text in (*place.settings, *settings) for part in ("--set", text)]
    entry = [sys.executable, "-m", "atoll", "run", str(place.recipe), "--on", "ray", "--json", *sets]
    submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", cluster.dashboard]
    # Without --working-dir: these machines share one folder for it, and each would empty it for itself.
    before = {task.task_id for task in every_task(cluster)}
    done = submitted([*submit, "--", "env", f"ATOLL_RUNS={place.folder / 'driver'}", *entry])
    assert done.returncode == 0, done.stdout + done.stderr
    run, reference = place.run("driver", *settings), on_local(place, *settings)
    for stage, other in ((run.data, reference.data), (run.partition, reference.partition)):
        assert stage.record.files == other.record.files
    assert files_of(run) == files_of(reference), "bit for bit"
    assert run.student.record.files == reference.student.record.files
    assert samples_of(run) == samples_of(reference)
    assert "samples/grid.png" in Mirror.of(run).store.names()
    trained = {"atoll router", "atoll student", "atoll expert 0", "atoll expert 1"}
    tasks = tasks_of(cluster, {"atoll part of data", "atoll part of partition", *trained}, before)
    with_gpu = {node.node_id for node in cluster.islands}
    assert tasks["atoll part of data"][0] == with_gpu, "encoded by an actor on each GPU"
    assert len(tasks["atoll part of partition"][0]) >= 2, "assigned on several machines"
    for name in trained:
        machines, resources = tasks[name]
        assert machines <= with_gpu and resources == {"CPU": 1.0, "GPU": 1.0}, name
    for folder in cluster.scratch.glob("*/tiny"):
        clusters = {path.name[-2:] for path in folder.glob("partition/cluster-*")}
        needs_all = (folder / "router").is_dir() or (folder / "student").is_dir()
        experts = {path.name for path in folder.glob("experts/[0-9][0-9]") if path.is_dir()}
        assert clusters == experts or needs_all, "a machine has its experts' clusters only"
    said = [done.stdout, done.stderr, *(path.read_text() for path in cluster.scratch.rglob("*.log"))]
    assert not [text for text in said if s3.SECRET in text]


@pytest.mark.thorough
def test_a_machine_is_lost_while_its_expert_trains(place, cluster, prepared):
    clear(cluster)
    settings = [*LONG, ON_AN_ISLAND, "router.steps=2", "expert.override=[{clusters=[1, 2], steps=10}]"]
    seed(place, prepared(*settings, name="seed"), *settings, trained=["expert 1", "expert 2"])
    mirror = Mirror.of(place.run("watcher", *settings))
    with held("expert-00", 25):
        driver = place.start("driver", "run", "--on", "ray", settings=settings)
        wait_for(lambda: steps_uploaded(mirror, 0) >= 10, driver)
        victim = at_work(cluster, 0)[0]
        cluster.remove_node(victim, allow_graceful=False)
        cluster.islands.remove(victim)
        uploaded = steps_uploaded(mirror, 0)
        # Ray's workers outlive their machine by a second: let go before, this one would train to the end.
        wait_for(lambda: len(mirror.store.names(leases.folder_name("experts/00"))) > 1, driver)
    _, err = driver.communicate(timeout=900)
    assert driver.returncode == 0, err
    assert "expert 0: training" in err and "expert 0: done" in err, "told as locally"
    run = place.run("driver", *settings)
    said = [line for line in events(run) if "experts/00" in (line.get("what"), line.get("stage"))]
    names = [line["event"] for line in said]
    assert "lost" in names, "the loss is named"
    later = [line["step"] for line in said[names.index("lost") :] if line["event"] == "checkpoint"]
    assert later and min(later) > uploaded, "it went on from the last state, not from nothing"
    here = prepared(*LONG)
    jobs.expert(here, 0)
    assert run.expert(0).record.files == here.expert(0).record.files, "bit for bit"
    uploaded = [line["stage"] for line in events(run) if line["event"] == "uploaded"]
    assert sorted(uploaded) == ["experts/00", "router"], "each once, and not what was there"


@pytest.mark.thorough
def test_the_driver_is_killed_and_the_run_submitted_again(place, cluster, prepared):
    clear(cluster)
    settings = [*LONG, "router.steps=2", "expert.override=[{clusters=[0, 1], steps=10}]"]
    seed(place, prepared(*settings, name="seed"), *settings, trained=["expert 1", "router"])
    mirror = Mirror.of(place.run("watcher", *settings))
    with held("expert-02", 25):
        first = place.start("first", "run", "--on", "ray", settings=settings)
        wait_for(lambda: mirror.is_done(mirror.run.expert(0)) and steps_uploaded(mirror, 2) >= 10, first)
        first.kill()
        first.communicate()
    finished = mirror.store.names("experts/00")
    again = place.start("second", "run", "--on", "ray", settings=settings)
    _, err = again.communicate(timeout=900)
    assert again.returncode == 0, err
    run = place.run("second", *settings)
    assert mirror.store.names("experts/00") == finished, "what was finished was not touched"
    uploaded = [line["stage"] for line in events(run) if line["event"] == "uploaded"]
    assert sorted(uploaded) == sorted({*uploaded}) and "experts/02" in uploaded, "none twice"
    lost = [line["what"] for line in events(run) if line["event"] == "lost"]
    assert "driver" in lost and "experts/02" in lost, "its end is named, and that of its job"
    here = prepared(*settings)
    jobs.expert(here, 2)
    assert run.expert(2).record.files == here.expert(2).record.files, "bit for bit"


def needs(run, name, cluster):
    return on_ray.resources(run.config.launch, driver.jobs_of([graph.node(run, name)])[0], cluster)


def test_jobs_ask_for_what_the_recipe_says_and_the_plan_counts(prepared):
    run = prepared("launch.threads=3", "launch.resources={A100=1}")
    with_gpus = needs(run, "expert 0", {"GPU": 4})
    assert with_gpus == {"num_cpus": 3, "num_gpus": 1.0, "resources": {"A100": 1.0}}
    without = needs(run, "expert 0", {"CPU": 4})
    assert without["num_gpus"] == 0
    expected = plan(run.config, known(run.data.contents))["jobs"]["expert 0"]["memory_bytes"]["total"]
    assert without["memory"] == int(expected) > 0
    forced = prepared("launch.resources={GPU=2}", name="forced")
    assert needs(forced, "expert 0", {})["num_gpus"] == 2


def test_what_no_machine_has_is_waited_for_aloud(caplog):
    caplog.set_level(logging.WARNING)
    wanted = {"num_cpus": 1, "num_gpus": 1, "resources": {"A100": 1}}
    on_ray._warn_of_waiting("expert 0", wanted, {"CPU": 4, "GPU": 2})
    assert "expert 0 waits for a machine with A100" in caplog.text

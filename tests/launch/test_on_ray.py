"""Whole runs on a real Ray cluster of fake machines with different resources, which die on demand."""

import logging
import subprocess
import sys
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from atoll import config
from atoll.data import encode, partition
from atoll.errors import AtollError, Interrupted
from atoll.launch import on_ray
from atoll.launch.local import Job, report
from atoll.runs import Run
from atoll.storage.mirror import Mirror
from atoll.train import jobs
from tests import s3
from tests.machines import Machines, files_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

NODES = [
    {"num_cpus": 1, "resources": {"island": 1, "north": 1}},
    {"num_cpus": 1, "num_gpus": 1, "resources": {"island": 1}},
    {"num_cpus": 2, "resources": {"island": 1, "south": 1}},
]
MEMORY = {"memory": 2 * 10**9, "object_store_memory": 80 * 10**6}


@pytest.fixture(scope="module")
def cluster(_s3, tmp_path_factory):
    """A head that runs no jobs but takes submissions, and three machines, all with access to the bucket."""
    scratch = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**s3.environment(_s3.port), "ATOLL_SCRATCH": str(scratch)}.items():
            patch.setenv(name, value)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        port = s3.free_ports(1)[0]
        made: Any = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": True, "dashboard_port": port, **MEMORY},
        )
        made.dashboard, made.scratch = f"http://127.0.0.1:{port}", scratch
        made.island = [made.add_node(**node, **MEMORY) for node in NODES]
        yield made
        made.shutdown()


@pytest.fixture
def place(store, tiny, tmp_path, cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    machines = Machines(store, tiny, tmp_path)
    machines.settings += ["launch.gpus=0"]
    return machines


def at_work(cluster, index):
    """The machines that have begun an expert."""
    return [
        node
        for node in cluster.island
        if (cluster.scratch / node.node_id[:16] / "tiny" / "experts" / f"{index:02d}" / "state").is_dir()
    ]


def clear(cluster):
    subprocess.run(["rm", "-rf", *map(str, cluster.scratch.iterdir())], check=True)


@pytest.fixture
def here(tiny):
    """The same run on one machine: a function of its settings."""

    def make(*settings):
        run = Run.create(config.load(tiny, [*settings, "name='here'"]), tiny)
        encode.prepare(run)
        partition.partition(run)
        for index in range(3):
            jobs.expert(run, index)
        jobs.router(run)
        return run

    return make


def test_a_whole_run_submitted_from_a_laptop_is_the_run_here(place, cluster, here):
    """Images to samples by `ray job submit`: every stage on the cluster, bit for bit as on one machine."""
    clear(cluster)
    settings = ["data.part=1700"]  # three parts, so that encoding and assigning are spread as well
    sets = [part for text in (*place.settings, *settings) for part in ("--set", text)]
    entry = [sys.executable, "-m", "atoll", "run", str(place.recipe), "--on", "ray", "--json", *sets]
    submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", cluster.dashboard]
    done = subprocess.run(
        [*submit, "--", "env", f"ATOLL_RUNS={place.folder / 'driver'}", *entry],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run, reference = place.run("driver", *settings), here(*settings)
    assert run.data.record["files"] == reference.data.record["files"]
    assert run.partition.record["files"] == reference.partition.record["files"]
    assert files_of(run) == files_of(reference), "bit for bit"
    assert "samples/grid.png" in Mirror.of(run).store.names()
    for made in ("data/part-*", "partition/assignment-*", "experts/[0-9][0-9]"):
        used = {path.relative_to(cluster.scratch).parts[0] for path in cluster.scratch.glob(f"*/tiny/{made}")}
        assert len(used) >= 2, f"{made} were made on several machines"
    for folder in cluster.scratch.glob("*/tiny"):
        experts = {path.name for path in folder.glob("experts/[0-9][0-9]") if path.is_dir()}
        clusters = {path.name[-2:] for path in folder.glob("partition/cluster-*")}
        assert clusters == experts or (folder / "router").is_dir(), "a machine has its experts' clusters only"
    said = [done.stdout, done.stderr, *(path.read_text() for path in cluster.scratch.rglob("*.log"))]
    assert not [text for text in said if s3.SECRET in text]


def test_jobs_ask_for_what_the_recipe_says_and_the_plan_counts(prepared):
    run = prepared("launch.threads=3", "launch.resources={A100=1}")
    with_gpus = on_ray.resources(run, "expert 0", {"GPU": 4})
    assert with_gpus == {"num_cpus": 3, "num_gpus": 1.0, "resources": {"A100": 1.0}}
    without = on_ray.resources(run, "expert 0", {"CPU": 4})
    assert without["num_gpus"] == 0
    from atoll.plan import plan

    expected = plan(run.config, run.data.contents)["jobs"]["expert 0"]["memory_bytes"]["total"]
    assert without["memory"] == int(expected) > 0
    forced = prepared("launch.resources={GPU=2}", name="forced")
    assert on_ray.resources(forced, "expert 0", {})["num_gpus"] == 2


def test_what_no_machine_has_is_waited_for_aloud(caplog):
    caplog.set_level(logging.WARNING)
    needs = {"expert 0": {"num_cpus": 1, "num_gpus": 1, "resources": {"A100": 1}}}
    on_ray._warn_of_waiting(needs, {"CPU": 4, "GPU": 2})
    assert "expert 0 waits for a machine with A100" in caplog.text


def test_how_jobs_elsewhere_end(tmp_path):
    def ended(name, code, words):
        job = Job(name, [], tmp_path / name, 1, 1)
        job.code, job.words = code, words
        return job

    report([ended("expert 0", 0, "")])
    with pytest.raises(Interrupted, match="expert 1 stopped and saved"):
        report([ended("expert 0", 0, ""), ended("expert 1", 75, "stopped too often")])
    with pytest.raises(AtollError, match="expert 1 failed: no memory"):
        report([ended("expert 1", 1, "no memory")])

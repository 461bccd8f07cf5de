"""What only this machine as an engine does; the rest is in contracts/test_engines."""

import contextlib
import os
import time
from pathlib import Path

import pytest

from atoll.errors import AtollError
from atoll.launch import driver, local, machine, process, warm
from atoll.launch.engine import Place
from atoll.runs import graph, read_json, read_lines
from tests import commands
from tests.machines import children, wait_for


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda: ())


@pytest.fixture
def engine_of():
    with contextlib.ExitStack() as stack:
        yield lambda run: stack.enter_context(local.opened(Place(run.path, run.config.launch, run)))


def jobs_of(run):
    return driver.jobs_of([node for node in graph.nodes(run) if node.is_job])


def test_no_more_at_once_than_allowed(play, engine_of):
    run = play(launch={"at_once": 1})
    running = []
    driver.run_jobs(
        jobs_of(run),
        engine_of(run),
        lambda statuses: running.append(sum(one.started and one.code is None for one in statuses)),
    )
    assert max(running) <= 1
    assert run.stage("last").done


def test_a_job_gets_its_threads(play, engine_of):
    run = play(launch={"threads": 3})
    driver.run_jobs(jobs_of(run), engine_of(run), lambda statuses: None)
    assert (run.stage("one").path / "threads").read_text() == "3"


def test_each_gpu_gets_one_job(play, engine_of, monkeypatch):
    monkeypatch.setattr(machine, "visible_gpus", lambda: ("4", "6"))
    run = play(one="wait", two="wait")
    taken: list[str] = []
    engine = engine_of(run)

    def stop(statuses):
        folders = [run.stage(name).path for name in ("one", "two")]
        if all((folder / "ready").is_file() for folder in folders):
            taken.extend((folder / "gpus").read_text() for folder in folders)
            raise AtollError("enough")

    with pytest.raises(AtollError, match="enough"):
        driver.run_jobs(jobs_of(run), engine, stop)
    assert sorted(taken) == ["4", "6"]


def test_a_killed_job_is_named(play, engine_of):
    run = play(one="die")
    with pytest.raises(AtollError, match=r"killed by SIGKILL \(log: .*one\.log\)"):
        driver.run_jobs(jobs_of(run), engine_of(run), lambda statuses: None)


@pytest.mark.slow
def test_a_killed_driver_leaves_no_orphans_and_loses_no_step(prepared, tiny):
    """Its jobs are asked to save and stop, as if it had asked them itself."""
    settings = ["expert.steps=5000", "expert.log_every=1", "expert.save_every=5000", "launch.at_once=3"]
    run = prepared(*settings)
    sets = [part for text in settings for part in ("--set", text)]
    started = commands.Command(["run", tiny, *sets])
    metrics = run.expert(0).path / "metrics.jsonl"
    wait_for(lambda: len(read_lines(metrics)) > 3, started)
    experts = children(started.pid)
    assert experts
    started.kill()
    started.communicate()
    for _ in range(6000):
        if not any(Path(f"/proc/{pid}").exists() for pid in experts):
            break
        time.sleep(0.1)
    assert not [pid for pid in experts if Path(f"/proc/{pid}").exists()], "orphans"
    saved = read_json(run.expert(0).path / "state" / "latest.json")["step"]
    assert saved > 3
    assert "stopped at step" in (run.path / "experts" / "00.log").read_text()


def test_a_slot_that_is_free_is_taken_again(play, engine_of, monkeypatch):
    """Jobs beyond the GPUs wait, and get the one that a finished job had."""
    monkeypatch.setattr(machine, "visible_gpus", lambda: ("7",))
    run = play()
    driver.run_jobs(jobs_of(run), engine_of(run), lambda statuses: None)
    assert {(run.stage(name).path / "gpus").read_text() for name in ("one", "two", "last")} == {"7"}
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "7"


def test_jobs_of_one_thread_are_forked_and_others_are_not(play, engine_of, monkeypatch):
    """A fork would not have the threads of libraries, nor a device that its parent has touched."""
    forked: list[bool] = []
    fork = process.fork

    def noted(spec, parent, **options):
        forked.append(parent is not None)
        return fork(spec, parent, **options)

    monkeypatch.setattr(process, "fork", noted)
    for launch, gpus in (({"threads": 1}, ()), ({"threads": 2}, ()), ({"threads": 1}, ("0",))):
        monkeypatch.setattr(machine, "visible_gpus", lambda gpus=gpus: gpus)
        run = play(launch=launch)
        engine = engine_of(run)
        job = jobs_of(run)[0]
        engine.room(1, 0)
        engine.start(job)
        engine.stop([job])
    assert forked == [warm.FORKS, False, False]

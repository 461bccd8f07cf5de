"""What every engine must do, whatever it is: one suite for local processes, Slurm and Ray."""

import contextlib
import os
import signal
from typing import Any

import pytest

from atoll.errors import AtollError, Interrupted
from atoll.launch import driver
from atoll.launch import engine as engines
from atoll.launch.driver import Screen
from atoll.launch.engine import Place
from atoll.launch.job import JobStatus
from atoll.runs import graph

LAUNCH: dict[str, dict[str, Any]] = {
    "local": {"at_once": 2},  # however many cores there are
    "slurm": {"slurm": {"cluster": "local"}, "retries": 2},
    "ray": {"gpus": 0, "retries": 2},
}

PLAYS = True
"""Workers of Ray know the stages that take no time."""


@pytest.fixture(
    params=[
        "local",
        pytest.param("slurm", marks=pytest.mark.slow),
        pytest.param("ray", marks=pytest.mark.slow),
    ]
)
def name(request):
    if request.param != "local":
        request.getfixturevalue("ray" if request.param == "ray" else "_forge")
    return request.param


@pytest.fixture
def made(play, name):
    """Give a run for this engine, and the engine."""
    with contextlib.ExitStack() as stack:

        def make(gpus=None, **told):
            launch = LAUNCH[name] if gpus is None else {**LAUNCH[name], "gpus": gpus}
            run = play(launch=launch, **told)
            place = Place(run.path, run.config.launch, run)
            return run, stack.enter_context(engines.opened(name, place))

        yield make


def jobs_of(run):
    return driver.jobs_of([node for node in graph.nodes(run) if node.is_job])


def quiet(statuses):
    pass


@pytest.mark.thorough(name="ray")
def test_every_job_runs_once_after_what_it_waits_for(made, name):
    """With the settings that it was given, whatever becomes of the run's own files while it is queued."""
    run, engine = made(seed=7)
    jobs = jobs_of(run)
    (run.path / "resolved.json").write_text("{}")
    driver.run_jobs(jobs, engine, quiet)
    stages = [run.stage(one) for one in ("one", "two", "last")]
    assert all(stage.done for stage in stages)
    first, second, last = ((stage.path / "done.json").stat().st_mtime_ns for stage in stages)
    assert max(first, second) < last
    assert (run.stage("one").path / "file").read_text() == "one of 7"
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()}
    driver.run_jobs(jobs, engine, quiet)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file()} == before
    screen = Screen(lambda: contextlib.nullcontext(quiet), lambda: contextlib.nullcontext(None))
    driver.drive(run, name, screen)
    assert run.stage("here").done, "the driver makes the rest here"
    assert {
        path: path.stat().st_mtime_ns for path in before if path.parent.name in ("one", "two", "last")
    } == {path: when for path, when in before.items() if path.parent.name in ("one", "two", "last")}


@pytest.mark.thorough(name=("slurm", "ray"))
def test_a_failure_is_told_in_the_words_of_the_job_after_the_others_have_ended(made):
    run, engine = made(one="fail")
    seen: list[list[JobStatus]] = []
    with pytest.raises(AtollError, match="one failed: one broke"):
        driver.run_jobs(jobs_of(run), engine, lambda statuses: seen.append(list(statuses)))
    assert run.stage("two").done, "the other job was not stopped"
    assert not run.stage("last").path.exists(), "what waits for a failed job is not begun"
    assert {status.name: status.state for status in seen[-1]} == {
        "one": "failed",
        "two": "done",
        "last": "waiting",
    }


@pytest.mark.thorough(name=("slurm", "ray"))
def test_a_job_that_saved_and_stopped_is_no_failure(made, name):
    run, engine = made(one="save")
    if name == "local":  # nobody queues it again here: that is for who started us
        with pytest.raises(Interrupted, match="one stopped and saved"):
            driver.run_jobs(jobs_of(run), engine, quiet)
    driver.run_jobs(jobs_of(run), engine, quiet)
    assert run.stage("last").done


@pytest.mark.thorough(name=("slurm", "ray"))
def test_a_stop_is_passed_on_and_waited_for(made, name):
    run, engine = made(one="wait", two="wait")
    ready = [run.stage(one).path / "ready" for one in ("one", "two")]

    def stop(statuses):
        if all(path.is_file() for path in ready):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="run the same command"):
        driver.run_jobs(jobs_of(run), engine, stop)
    saved = [run.stage(one).path / "saved" for one in ("one", "two")]
    if name == "slurm":  # they go on by themselves
        assert not any(path.is_file() for path in saved)
        for path in ready:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
        for job in engine._jobs.values():
            job._process.kill()
            job._process.wait()
    else:
        assert all(path.is_file() for path in saved)


@pytest.mark.thorough(name=("slurm", "ray"))
def test_a_job_of_two_gpus_is_two_ranks_that_save_and_stop_as_one(made, name, monkeypatch):
    """The first time one of them has saved and stopped, and that is what the job's end says."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    run, engine = made(gpus=2, ranked="save")
    jobs = driver.jobs_of([graph.node(run, "ranked")])
    if name == "local":
        with pytest.raises(Interrupted, match="ranked stopped and saved"):
            driver.run_jobs(jobs, engine, quiet)
    driver.run_jobs(jobs, engine, quiet)
    assert run.stage("ranked").done
    assert (run.stage("ranked").path / "gpus").read_text() == "0,1"
    sizes = {path.parent.name: path.read_text() for path in run.path.glob("ranks/*/size")}
    assert sizes == {"0": "2", "1": "2"}

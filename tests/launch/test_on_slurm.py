"""Slurm's part played by submitit's local executor: real processes, real signals, real queueing again."""

import contextlib
import os
import signal
from dataclasses import replace

import pytest

from atoll.config import RunConfig
from atoll.errors import ConfigError
from atoll.launch import driver, on_slurm
from atoll.launch.engine import Place
from atoll.launch.job import Job, JobSpec, JobStatus
from atoll.runs import Run, graph, read_json, read_lines
from atoll.train import jobs
from tests.holding import held
from tests.machines import children

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_forge")]

LOCAL = 'launch.slurm={cluster="local"}'


def place_of(run):
    return Place(run.path, run.config.launch, run)


@pytest.mark.thorough
def test_preempted_stopped_and_queued_again(play):
    """One job is preempted, one is told to stop: both save, are queued again, and end."""
    run = play(launch={"slurm": {"cluster": "local"}, "retries": 2}, one="go on", two="go on")
    engine = on_slurm.OnSlurm(place_of(run))
    asked: set[str] = set()

    def disturb(statuses):
        """As whoever wants the machine back; as Slurm announces a preemption."""
        ready = {name: run.stage(name).path / "ready" for name in ("one", "two")}
        if ready["one"].is_file() and "one" not in asked:
            os.kill(int(ready["one"].read_text()), signal.SIGTERM)
            asked.add("one")
        if ready["two"].is_file() and "two" not in asked:
            submitted = read_json(run.path / "slurm" / "jobs.json")["two"]["id"]
            os.kill(children(int(submitted))[0], signal.SIGUSR2)
            asked.add("two")

    driver.run_jobs(jobs_of(run), engine, disturb)
    assert asked == {"one", "two"} and run.stage("last").done
    listed = read_json(run.path / "slurm" / "jobs.json")
    for name in ("one", "two"):
        assert (run.stage(name).path / "saved").read_text() == "asked", "it saved ahead"
        log = next((run.path / "slurm").glob(f"{listed[name]['id']}*log.out")).read_text()
        assert "Requeued job" in log


def jobs_of(run):
    return driver.jobs_of([node for node in graph.nodes(run) if node.is_job])


@pytest.mark.thorough
def test_a_preempted_training_ends_bit_for_bit_as_an_undisturbed_one(prepared):
    steps = ["expert.steps=20", "expert.log_every=1"]
    run, whole = prepared(LOCAL, *steps, name="preempted"), prepared(*steps, name="whole")
    asked: list[str] = []
    with contextlib.ExitStack() as waiting:
        waiting.enter_context(held("expert-01", 10))

        def preempt(statuses):
            taken = len(read_lines(run.expert(1).path / "metrics.jsonl"))
            if taken >= 10 and not asked:
                asked.append(read_json(run.path / "slurm" / "jobs.json")["expert 1"]["id"])
                os.kill(children(int(asked[0]))[0], signal.SIGUSR2)
            if taken > 10:  # it has heard, and stops after this step
                waiting.close()

        chosen = driver.jobs_of([graph.node(run, "expert 1")])
        driver.run_jobs(chosen, on_slurm.OnSlurm(place_of(run)), preempt)
    log = next((run.path / "slurm").glob(f"{asked[0]}*log.out")).read_text()
    assert "Requeued job" in log and len(read_lines(run.expert(1).path / "metrics.jsonl")) == 20
    assert run.expert(1).record.files == jobs.expert(whole, 1).record.files


def test_a_failure_is_told_in_the_words_of_the_job(prepared, tiny):
    run = prepared(LOCAL)
    [job] = driver.jobs_of([graph.node(run, "expert 1")])
    job = replace(job, name="expert 7", spec=replace(job.spec, stage="expert 7"))
    with pytest.raises(Exception, match="expert 7 failed: there is no expert 7"):
        driver.run_jobs([job], on_slurm.OnSlurm(place_of(run)), lambda statuses: None)


def test_without_slurm_it_says_so(prepared, tiny, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="there is no Slurm here"):
        on_slurm.open_executor(place_of(prepared()))


class Queued:
    """A job of Slurm that is at work."""

    state = "RUNNING"

    def __init__(self, folder, job_id):
        self.job_id = job_id

    def done(self):
        return False


class Executor:
    """Gives every job that is submitted the next number."""

    folder, job_class = "nowhere", Queued

    def __init__(self):
        self.count = 0

    def submit(self, work):
        self.count += 1
        return Queued(self.folder, str(self.count))


def test_a_job_that_is_watched_again_was_not_resumed(tmp_path, monkeypatch):
    """It has saved meanwhile, but goes on without a stop; one that is submitted anew goes on from there."""
    executor = Executor()
    monkeypatch.setattr(on_slurm, "open_executor", lambda place: executor)
    run = Run(tmp_path, RunConfig(name="a"))
    (tmp_path / "slurm").mkdir()
    spec = JobSpec.of("expert 0", run.config, run.path)
    job = Job("expert 0", spec, tmp_path / "experts" / "00", saved_step=lambda: 263)
    steps = []
    for _ in range(2):
        engine, status = on_slurm.OnSlurm(place_of(run)), JobStatus(job)
        status.begin()
        engine.start(job)
        engine.poll(status)
        steps.append(status.resumed)
    assert (steps, executor.count) == ([263, 0], 1)


def test_what_slurm_is_asked_for(prepared, tmp_path, monkeypatch):
    """The batch file, as `sbatch` would get it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, said in (("sbatch", "Submitted batch job 12"), ("srun", ""), ("sacct", "")):
        (programs / name).write_text(f"#!/bin/sh\necho {said}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    run = prepared(
        "launch.minutes=720", "launch.grace=90", "launch.threads=4", 'launch.slurm={partition="gpu"}'
    )
    executor = on_slurm.open_executor(place_of(run))
    spec = JobSpec.of("router", run.config, run.path)
    job = executor.submit(on_slurm.Work(spec, 1, str(tmp_path / "log"), 0))
    text = job.paths.submission_file.read_text()
    wanted = ("--time=720", "--signal=USR2@90", "--requeue", "--partition=gpu", "--cpus-per-task=4")
    assert [option for option in (*wanted, "--gpus-per-node=1") if f"#SBATCH {option}" not in text] == []


def test_whoever_plays_slurm_has_the_limits_too(prepared):
    """It announces the end of a job ahead of its limit, by the signal that a preemption has."""
    executor = on_slurm.open_executor(place_of(prepared(LOCAL, "launch.minutes=720", "launch.grace=90")))
    asked = {name: executor.parameters[name] for name in ("timeout_min", "signal_delay_s")}
    assert asked == {"timeout_min": 720, "signal_delay_s": 90}
    assert executor.max_num_timeout == prepared(name="other").config.launch.retries

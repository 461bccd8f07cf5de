"""Several processes of one job: two on the CPU, where two GPUs are only said to be there."""

import os
import signal

import pytest

from atoll.errors import AtollError, Interrupted
from atoll.launch import leased, process, ranks
from atoll.launch.job import JobSpec
from atoll.runs import Run, graph, read_json, read_lines
from atoll.storage.mirror import Mirror
from tests import commands
from tests.machines import wait_for


def test_as_many_as_there_are_gpus_and_were_asked_for(prepared, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def wanted(gpus, name="expert 0"):
        return ranks.wanted(graph.node(prepared(f"launch.gpus={gpus}", name=f"g{gpus}{name[0]}"), name))

    assert [wanted(gpus) for gpus in (0, 0.5, 1, 2, 8)] == [1, 1, 1, 2, 4]
    assert wanted(3, "partition") == 1, "nothing is trained there"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert wanted(4) == 1, "a rank starts no others"
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert wanted(5) == 1


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0),
        ([75, 75], 75),
        ([0, 75], 75),
        ([1, -15], 1),
        ([-15, 1], 1),
        ([75, -9], -9),
        ([-15, 0], -15),
        ([75, -15], 75),
        ([-15, -15], -15),
    ],
)
def test_one_exit_code_for_all(codes, code):
    assert ranks._code(codes) == code


def test_what_an_exit_code_means():
    ranks.check(0)
    with pytest.raises(Interrupted):
        ranks.check(75)
    with pytest.raises(AtollError, match="killed by SIGKILL"):
        ranks.check(-9)
    with pytest.raises(ranks.ReportedError):
        ranks.check(1)


def test_a_rank_that_fails_ends_the_others(play, capfd):
    run = play(one="wait")
    spec = JobSpec.of("moon", run.config, run.path)
    assert ranks.run(spec, 2) == 1
    assert "there is no stage 'moon'" in capfd.readouterr().err


def test_a_stop_while_ranks_are_starting_is_a_stop(play, monkeypatch):
    """Before it can hear a request to stop, a process is ended by it."""
    run = play(one="wait")
    start = process.start

    def deaf(spec, **options):
        started = start(spec, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return started

    monkeypatch.setattr(process, "start", deaf)
    assert ranks.run(JobSpec.of("one", run.config, run.path), 2) == 75


@pytest.mark.slow
@pytest.mark.thorough
def test_a_job_of_two_ranks_is_the_job_of_one_and_is_stopped_as_one(prepared, tiny, monkeypatch, tmp_path):
    """Stopped by a signal it ends with 75, all ranks at the same step; run again it ends as if alone.

    With a store, of which the ranks know nothing.
    """
    (tmp_path / "store").mkdir()
    settings = ["expert.steps=30", "expert.log_every=1", "expert.precision=float32", "launch.gpus=2"]
    alone = prepared(*settings, name="alone")
    settings += [f"launch.store={tmp_path / 'store'}"]
    run = prepared(*settings)
    leased.look(run)
    sets = [part for text in settings for part in ("--set", text)]
    command = ["expert", "0", tiny, *sets]
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", "ATOLL_RUNS": str(run.path.parent)}
    started = commands.Command(command, environment)
    wait_for(lambda: len(read_lines(run.expert(0).path / "metrics.jsonl")) > 3, started)
    started.send_signal(signal.SIGTERM)
    _, err = started.communicate(timeout=900)
    if started.returncode != 0:  # else it was through before it heard
        assert started.returncode == 75, err
        assert 3 < read_json(run.expert(0).path / "state" / "latest.json")["step"] <= 30
        assert commands.run(*command, environment=environment).returncode == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    graph.node(alone, "expert 0").make()
    assert Run.open(run.path).expert(0).contents.steps == 30
    assert Mirror.of(run).is_done(run.expert(0)), "handed in"
    last = [read_lines(one.expert(0).path / "metrics.jsonl")[-1]["loss"] for one in (run, alone)]
    assert last[0] == pytest.approx(last[1], rel=1e-3)

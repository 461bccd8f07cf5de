"""Every stage, its state and its numbers, against what a run's folder says."""

import json
import os
import socket
import subprocess
import sys

import pytest

from atoll.runs import Run
from atoll.runs.records import ExpertContents, RouterContents
from atoll.serve.view import View
from atoll.storage.mirror import Mirror
from tests.serving import finish

NOW = 1_000_000.0


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def measure(run: Run, index: int, *steps: int, ago: float = 0.0, rate: float = 40.0, **more: float) -> None:
    """Lines as an expert writes them, ten seconds apart, the last one so long ago."""
    stage = run.expert(index)
    stage.start({"data": "x"})
    with (stage.path / "metrics.jsonl").open("a") as file:
        for number, step in enumerate(steps):
            when = NOW - ago - 10 * (len(steps) - 1 - number)
            line = {"step": step, "time": when, "loss": 1 / step, "samples_per_second": rate, **more}
            file.write(json.dumps(line) + "\n")


def stages(view):
    return {stage.name: stage for stage in view.look().stages}


def test_every_stage_of_a_run_that_trains(prepared, clock):
    run = prepared()
    measure(run, 0, 2, 4, gradient_norm=0.5, gpu_bytes=2**30)
    finish(run.expert(1), ExpertContents(steps=10))
    view = View(run, clock=clock)
    seen = stages(view)
    assert {name: stage.state for name, stage in seen.items()} == {
        "data": "done",
        "partition": "done",
        "router": "waiting",
        "expert 0": "training",
        "expert 1": "done",
        "expert 2": "waiting",
        "samples": "waiting",
        "report": "waiting",
    }
    expert = seen["expert 0"]
    assert (expert.step, expert.steps, expert.loss, expert.norm, expert.rate) == (4, 10, 0.25, 0.5, 40.0)
    assert expert.gpu_bytes == pytest.approx(2**30, rel=1e-4) and expert.heard == 0
    assert expert.seconds == pytest.approx(6 * 8 / 40)
    assert seen["expert 1"].step == 10, "what is done is whole, whatever its last line says"
    looked = view.look()
    assert looked.state == "training" and not looked.finished
    # Of 10 + 10 + 10 + 6 steps 10 and 4 are done.
    assert looked.fraction == pytest.approx(14 / 36)
    assert (looked.whole.done, looked.whole.jobs, looked.whole.rate) == (1, 4, 40.0)
    # One at a time at 40 a second: 48 samples, then 48 of the router and 80 of expert 2.
    assert looked.whole.seconds == pytest.approx((48 + 48 + 80) / 40)


def test_a_look_is_shared_for_a_moment_and_only_new_lines_are_read(prepared, clock):
    run = prepared()
    measure(run, 0, 2)
    view = View(run, clock=clock)
    first = view.look()
    measure(run, 0, 4)
    assert view.look() is first
    clock.now += 1
    assert view.look().version == first.version + 1
    assert list(view.since(first.version)) == ["expert 0"]
    assert view.since(first.version)["expert 0"]["step"] == [2, 4]
    assert view.since(view.look().version) == {}
    follower = view.curves["expert 0"]._follower
    assert follower.bytes_read == (run.expert(0).path / "metrics.jsonl").stat().st_size


@pytest.mark.parametrize(("ago", "state"), [(50, "training"), (99, "training"), (101, "silent")])
def test_what_says_nothing_for_long_is_silent(prepared, clock, ago, state):
    run = prepared()
    measure(run, 0, 2, 4, 6, ago=ago)  # a line every 10 s: ten times that is the limit
    expert = stages(View(run, clock=clock))["expert 0"]
    assert expert.state == state and expert.heard == ago


def test_what_is_killed_is_stopped(prepared, clock):
    run = prepared()
    measure(run, 0, 2)
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock = run.path / "experts" / ".00.lock"
    lock.write_text(json.dumps({"pid": ended.pid, "host": socket.gethostname(), "since": 1}))
    assert stages(View(run, clock=clock))["expert 0"].state == "stopped"
    lock.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": 1}))
    assert stages(View(run, clock=clock))["expert 0"].state == "training"


def test_what_failed_says_why(prepared, clock):
    run = prepared()
    measure(run, 0, 2)
    run.event("failed", stage="expert 0", problem="the loss is not finite")
    view = View(run, clock=clock)
    assert (stages(view)["expert 0"].state, stages(view)["expert 0"].problem) == (
        "failed",
        "the loss is not finite",
    )
    assert view.look().state == "failed" and view.look().whole.failed == 1


def test_a_finished_run_is_done(finished, clock):
    view = View(finished, clock=clock)
    assert not view.look().finished, "samples and report are still to come"
    for name in ("samples", "report"):
        finish(finished.stage(name), RouterContents())
    (finished.path / "report" / "report.html").write_text("<!doctype html>")
    clock.now += 1
    assert view.look().finished and view.look().state == "done" and view.look().fraction == 1
    assert view.report() == b"<!doctype html>"


def test_a_run_in_a_bucket_is_seen_from_elsewhere(prepared, store):
    run = prepared()
    mirror = Mirror(run, f"{store.address}/tiny", 30)
    mirror.open(lead=True)
    mirror.upload(run.data)
    lease = mirror.leases.acquire("experts/02")
    attempt = mirror.attempt(run.expert(2), lease.token)
    measure(run, 2, 2, 4)
    attempt.upload()
    view = View.open(f"{store.address}/tiny")
    seen = stages(view)
    assert seen["data"].state == "done" and seen["partition"].state == "waiting"
    assert (seen["expert 2"].step, seen["expert 2"].loss) == (4, 0.25)
    assert view.report() is None


def test_only_a_run_is_watched(prepared, tmp_path):
    assert View.of(prepared().path).run.config.name == "tiny"
    assert View.of(tmp_path) is None


def test_no_torch_is_needed():
    code = "import sys, atoll.serve.watching; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"

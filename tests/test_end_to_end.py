"""Whole runs in real processes."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch

from atoll.models.checkpoint import read_tensors
from atoll.runs import read_json, read_lines
from tests import commands
from tests.holding import held

pytestmark = pytest.mark.slow


def start(*arguments, runs):
    return commands.Command(arguments, {"ATOLL_RUNS": str(runs)})


def state(folder):
    pointer = read_json(folder / "state" / "latest.json")
    return pointer["step"], read_tensors(folder / "state" / pointer["file"])


def wait_for_step(process, folder, step):
    """Until the job has taken this many steps."""
    for _ in range(6000):
        lines = read_lines(folder / "metrics.jsonl")
        if lines and lines[-1]["step"] >= step:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("the job does not get on")


def test_from_pictures_to_pictures_and_again(tiny, tmp_path):
    runs = tmp_path / "r"
    first = start("run", tiny, "--json", runs=runs)
    out, err = first.communicate(timeout=900)
    assert first.returncode == 0, err
    answer = json.loads(out)
    assert Path(answer["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    made = {path: path.stat().st_mtime_ns for path in runs.rglob("weights.safetensors")}
    assert len(made) == 4  # three experts and the router
    again = start("run", tiny, runs=runs)
    out, err = again.communicate(timeout=900)
    assert again.returncode == 0, err
    assert "report.html" in out
    assert made == {path: path.stat().st_mtime_ns for path in runs.rglob("weights.safetensors")}
    assert "training" not in err, "nothing is trained twice"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.thorough(how=signal.SIGTERM)
def test_killed_and_resumed_is_uninterrupted_bit_for_bit(prepared, tiny, tmp_path, how):
    steps = ["--set", "expert.steps=40", "--set", "expert.log_every=1", "--set", "expert.save_every=7"]
    whole = prepared(name="whole")
    broken = prepared(name="broken")
    runs = whole.path.parent

    def job(name):
        return start("expert", "1", tiny, "--set", f"name='{name}'", *steps, runs=runs)

    with held("expert-01", 30):
        victim = job("broken")
        wait_for_step(victim, broken.expert(1).path, 30)
        victim.send_signal(how)
        _, err = victim.communicate(timeout=600)
    assert victim.returncode == (75 if how == signal.SIGTERM else -9), err
    assert not broken.expert(1).done
    reference, resumed = job("whole"), job("broken")
    assert resumed.wait(timeout=600) == 0, resumed.communicate()
    assert reference.wait(timeout=600) == 0
    resumed.communicate()
    reference.communicate()
    (left_step, left), (right_step, right) = state(whole.expert(1).path), state(broken.expert(1).path)
    assert left_step == right_step == 40
    assert [key for key in left if not torch.equal(left[key], right[key])] == []
    assert whole.expert(1).record.files == broken.expert(1).record.files


def test_stopping_a_run_saves_and_asks_to_be_run_again(tiny, tmp_path):
    runs = tmp_path / "r"
    command = ["run", tiny, "--set", "expert.steps=100000", "--set", "expert.log_every=1"]
    process = start(*command, runs=runs)
    folder = runs / "tiny" / "experts" / "00"
    wait_for_step(process, folder, 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 75, err
    assert "run the same command again" in err
    assert state(folder)[0] >= 3

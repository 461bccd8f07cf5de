"""Who else is told what is measured; and that none of them can stop a training."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll.runs import read_lines
from atoll.train import jobs, tracking
from tests import commands

ONE_EXPERT = Path(__file__).parent / "script_ranks.py"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """No key, no network, no home of anybody's."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)


def lines_of(run):
    return read_lines(run.expert(0).path / "metrics.jsonl")


def failures(run):
    return [line for line in read_lines(run.path / "events.jsonl") if line["event"] == "tracking_failed"]


def numbers(line):
    return {key: value for key, value in line.items() if key not in ("step", "time")}


@pytest.mark.filterwarnings("default")
def test_tensorboard_has_every_line(prepared):
    run = prepared('expert.tracking=["tensorboard"]')
    jobs.expert(run, 0)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (run.path / "tracking" / "tensorboard" / "expert-00").iterdir()
    shown: dict[int, dict[str, float]] = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            shown.setdefault(event.step, {})[value.tag] = value.tensor.float_val[0]
    assert list(shown) == [line["step"] for line in lines_of(run)]
    for line in lines_of(run):
        assert shown[line["step"]] == pytest.approx(numbers(line), rel=1e-6)
    assert failures(run) == []


def test_wandb_offline_leaves_a_run_to_be_sent_later(prepared):
    """In a process of its own, as jobs are: its threads and sockets live as long as that."""
    run = prepared('expert.tracking=["wandb"]')
    done = commands.python(ONE_EXPERT, run.path)
    assert done.returncode == 0, done.stderr
    assert run.expert(0).done
    assert failures(run) == []
    files = list((run.path / "tracking" / "wandb").rglob("offline-run-*/run-*.wandb"))
    assert len(files) == 1
    assert b"gradient_norm" in files[0].read_bytes()


class Broken:
    """A tracker that fails at one moment."""

    def __init__(self, moment, about, step):
        self.moment = moment
        self.at("init")

    def at(self, moment):
        if moment == self.moment:
            raise RuntimeError(f"no {moment}\nand a long story")

    def log(self, step, values):
        self.at("log")

    def close(self):
        self.at("close")


@pytest.mark.parametrize("moment", ["init", "log", "close"])
def test_one_that_fails_is_one_line_and_training_goes_on(prepared, monkeypatch, caplog, moment):
    heard: list[int] = []
    fine = SimpleNamespace(log=lambda step, values: heard.append(step), close=lambda: heard.append(-1))
    monkeypatch.setitem(tracking.TRACKERS, "wandb", lambda about, step: Broken(moment, about, step))
    monkeypatch.setitem(tracking.TRACKERS, "tensorboard", lambda about, step: fine)
    run = prepared('expert.tracking=["wandb", "tensorboard"]')
    assert jobs.expert(run, 0).done
    (failure,) = failures(run)
    assert (failure["job"], failure["tracker"], failure["reason"]) == ("expert-00", "wandb", f"no {moment}")
    assert f"expert-00: wandb does not work (no {moment}); training goes on without it" in caplog.text
    assert heard == [2, 4, 6, 8, 10, -1], "others are told all the same"


def test_one_that_is_not_installed_says_what_to_do(prepared, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = prepared('expert.tracking=["wandb"]')
    jobs.expert(run, 0)
    assert failures(run)[0]["reason"] == "it is not installed: pip install 'atoll[wandb]'"


def test_one_that_hangs_at_the_end_is_left():
    never = threading.Event()
    with pytest.raises(TimeoutError, match="it was not done after 0.01 s"):
        tracking._in_time(lambda: never.wait(30), 0.01)
    never.set()


def test_by_default_nobody_is_told(prepared):
    run = prepared()
    jobs.expert(run, 0)
    assert not (run.path / "tracking").exists()


def test_without_a_key_it_is_offline(monkeypatch, tmp_path):
    assert tracking.wandb_mode() == "offline"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert tracking.wandb_mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert tracking.wandb_mode() == "disabled"

"""A replay of a real training's interval, from its files and from its states."""

import shutil

import pytest
import torch

from atoll.errors import CorruptError
from atoll.models.checkpoint import read_tensors, write_tensors
from atoll.net.protocol import Unit
from atoll.net.verification import replay
from atoll.net.verification.asking import BEFORE, COMMITTED, REPLAYED, REPORT, state_name
from atoll.net.verification.comparison import Report
from atoll.net.verification.spoil import spoilt
from atoll.runs import file_digest
from atoll.train import jobs
from atoll.train.ranks import Ranks

UNIT = Unit(run="a" * 64, name="audit", stage="expert 0", role="audit", first=3, last=6, every=3)


@pytest.fixture
def trained(prepared):
    """A run with the states of steps 3, 6 and 9."""
    run = prepared("expert.milestone_every=3", "expert.precision='float32'")
    jobs.expert(run, 0)
    return run


def laid(run):
    """What an audit of steps 3 to 6 leaves behind."""
    (run.path / "audit").mkdir()
    for name, step in ((BEFORE, 3), (REPLAYED, 6), (COMMITTED, 6)):
        shutil.copy(state(run, step), run.path / name)


def state(run, step):
    return run.expert(0).path / "state" / state_name(step)


def test_a_true_interval_is_reported_as_equal(trained):
    laid(trained)
    path = replay.report(trained.path, UNIT)
    report = Report.model_validate_json(path.read_bytes())
    assert path == trained.path / REPORT
    assert report.comparison.equal
    assert report.replayed == report.committed == file_digest(state(trained, 6))


def test_a_spoilt_interval_is_seen(trained):
    laid(trained)
    before, after = read_tensors(state(trained, 3)), read_tensors(state(trained, 6))
    write_tensors(trained.path / COMMITTED, spoilt(before, after, 1))
    report = Report.model_validate_json(replay.report(trained.path, UNIT).read_bytes())
    assert not report.comparison.equal
    assert 0.4 < report.comparison.kinds["model"].relative < 0.8
    assert report.comparison.kinds["exp_avg"].relative == 0


def test_a_state_that_is_not_there_is_named(trained):
    laid(trained)
    (trained.path / BEFORE).unlink()
    with pytest.raises(CorruptError, match="left no before.safetensors"):
        replay.report(trained.path, UNIT)


def test_steps_taken_from_a_state_are_those_of_the_training(trained):
    """From the file of step 3 to step 6, without a folder, bit for bit; and it leaves the first as it was."""
    before, after = read_tensors(state(trained, 3)), read_tensors(state(trained, 6))
    kept = {name: value.clone() for name, value in before.items()}
    cluster, stage = trained.cluster(0), trained.expert(0)
    task, _ = jobs._task(trained, stage, [cluster], trained.config.expert, Ranks())
    result = replay.taken(task, before, 3, 6, torch.device("cpu"))
    assert replay.state_hash(result) == replay.state_hash(after)
    assert replay.state_hash(before) == replay.state_hash(kept)


def test_hashes_of_states_see_names_shapes_types_and_bits():
    base = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "c": torch.ones(1)},
        {"a": torch.zeros(2, 3, dtype=torch.float64), "b": torch.ones(1)},
        {"a": -torch.zeros(2, 3), "b": torch.ones(1)},
        {"b": torch.ones(1)},
    ]
    assert len({replay.state_hash(one) for one in (base, *others)}) == 6
    assert replay.state_hash(dict(reversed(base.items()))) == replay.state_hash(base)

"""The loss on what is held out: measured now and then, the same everywhere; nothing is learnt by it."""

import pytest
import torch

from atoll import config
from atoll.data import holdout as resting
from atoll.data.partition import partition
from atoll.flow import draws, path
from atoll.models import checkpoint
from atoll.runs import Run, read_json, read_lines
from atoll.train import holdout, jobs


@pytest.fixture(scope="module")
def _held(_tiny_data, tmp_path_factory):
    """The tiny recipe with a twentieth held out, its clusters made once."""
    folder = tmp_path_factory.mktemp("held")
    tree = Run.open(_tiny_data).config.model_dump(mode="json")
    tree["data"]["holdout"] = 0.05
    run = Run(folder / "held", config.validate(tree, "a test"))
    run.path.mkdir()
    (run.path / "data").symlink_to(_tiny_data / "data")
    partition(run)
    return run


@pytest.fixture
def held(_held, tmp_path):
    """Give such a run of one's own, with other settings of its experts."""

    def make(name="held", **expert):
        tree = _held.config.model_dump(mode="json")
        tree["expert"] |= {"precision": "float32", "holdout_every": 4, **expert}
        run = Run(tmp_path / name, config.validate(tree, "a test"))
        run.path.mkdir()
        for stage in ("data", "partition"):
            (run.path / stage).symlink_to(_held.path / stage)
        return run

    return make


def lines_of(stage):
    return read_lines(stage.path / "metrics.jsonl")


def test_it_is_measured_every_so_often_and_at_the_end(held):
    run = held()
    jobs.expert(run, 0)
    measured = [line["step"] for line in lines_of(run.expert(0)) if "holdout" in line]
    assert measured == [4, 8, 10]
    last = lines_of(run.expert(0))[-1]
    assert {key for key in last if key.startswith("holdout_t")} == {
        f"holdout_t0.{n}" for n in ("00", "25", "50", "75")
    }


def test_its_value_is_that_of_the_averaged_weights_by_hand(held):
    run = held()
    stage = jobs.expert(run, 0)
    model, _ = checkpoint.load(
        stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG, torch.device("cpu")
    )
    batch = resting.read([run.cluster(0)], 256)
    size, n = 256, len(batch.x_0)
    assert n < size, "they come again, with other noise"
    drawn = draws.training_draws(0, "holdout", 0, (size, 1, 28, 28), 0.0)
    x_0 = batch.x_0[torch.arange(size) % n]
    with torch.no_grad():
        predicted = model(path.point(x_0, drawn.noise, drawn.t), drawn.t, None)
    loss = (predicted - (drawn.noise - x_0)).square().flatten(1).mean(1)
    last = lines_of(stage)[-1]
    assert last["holdout"] == pytest.approx(loss.mean().item(), rel=1e-5)
    early = drawn.t < 0.25
    assert last["holdout_t0.00"] == pytest.approx(loss[early].mean().item(), rel=1e-5)


def test_nothing_is_learnt_by_measuring(held):
    often, never = held("often", holdout_every=1), held("never", holdout_every=1000)
    jobs.expert(often, 0)
    jobs.expert(never, 0)
    weights = [checkpoint.read_tensors(run.expert(0).path / checkpoint.WEIGHTS) for run in (often, never)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    states = [read_json(run.expert(0).path / "state" / "latest.json")["sha256"] for run in (often, never)]
    assert states[0] == states[1]
    last = [lines_of(run.expert(0))[-1] for run in (often, never)]
    assert last[0]["holdout"] == last[1]["holdout"]


def test_parts_of_a_batch_give_the_same(held):
    whole, parted = held("whole"), held("parted", micro_batch=3)
    jobs.expert(whole, 0)
    jobs.expert(parted, 0)
    values = [lines_of(run.expert(0))[0] for run in (whole, parted)]
    assert values[0].keys() == values[1].keys()
    last = [lines_of(run.expert(0))[-1]["holdout"] for run in (whole, parted)]
    assert last[0] == pytest.approx(last[1], rel=1e-4)


def test_the_router_is_measured_on_all_clusters(held):
    run = held()
    jobs.router(run)
    assert lines_of(run.router)[-1]["holdout"] > 0
    assert len(resting.of_run(run).cluster.unique()) == 3


def test_without_it_no_line_speaks_of_it(prepared):
    run = prepared("expert.holdout_every=1")
    jobs.expert(run, 0)
    assert not any("holdout" in line for line in lines_of(run.expert(0)))


def test_large_samples_are_fewer():
    assert holdout.rows_of((1, 28, 28)) == 256
    assert holdout.rows_of((3, 256, 256)) == 85
    assert holdout.rows_of((3, 1024, 1024)) == 32


def test_what_is_not_finite_is_left_out(held, monkeypatch):
    run = held()
    monkeypatch.setattr(holdout, "by_time", lambda losses, t: {"loss_t0.00": float("nan"), "loss_t0.75": 1.0})
    jobs.expert(run, 0)
    assert "holdout_t0.75" in lines_of(run.expert(0))[-1]
    assert "holdout_t0.00" not in lines_of(run.expert(0))[-1]

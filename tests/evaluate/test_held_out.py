"""On which samples at which times: fixed by seed and epoch, evenly spread, never all by luck."""

import logging

import pytest
import torch

from atoll import config
from atoll.data import partition
from atoll.evaluate import held_out
from atoll.flow import draws
from atoll.runs import Run


def run_of(tmp_path, **credit):
    times = credit.pop("times", "uniform")
    settings = {
        "name": "x",
        "seed": 3,
        "expert": {"times": times},
        "credit": {"num": 64, "bins": 4, **credit},
    }
    return Run(tmp_path, config.validate(settings, "a test"))


def test_the_same_seed_and_epoch_give_the_same_rows_and_another_epoch_gives_others(tmp_path):
    first, again = (held_out.plan(run_of(tmp_path), 200) for _ in range(2))
    assert torch.equal(first.sample, again.sample)
    assert torch.equal(first.t, again.t)
    later = held_out.plan(run_of(tmp_path, epoch=1), 200)
    assert set(later.points.tolist()) != set(first.points.tolist())
    other = held_out.plan(run_of(tmp_path, seed=9), 200)
    assert not torch.equal(other.points, first.points)


def test_the_seed_is_the_runs_unless_said_otherwise(tmp_path):
    assert held_out.seed_of(run_of(tmp_path)) == 3
    assert held_out.seed_of(run_of(tmp_path, seed=8)) == 8
    assert held_out.commitment(3) != held_out.commitment(8)
    assert len(held_out.commitment(3)) == 64


def test_every_sample_comes_as_often_and_no_more_than_there_are(tmp_path):
    few = held_out.plan(run_of(tmp_path), 16)
    assert torch.bincount(few.sample).tolist() == [4] * 16
    many = held_out.plan(run_of(tmp_path), 1000)
    assert len(set(many.sample.tolist())) == 64


@pytest.mark.parametrize("times", ["uniform", "logit-normal"])
def test_times_are_those_of_training_in_equal_strata(tmp_path, times):
    run = run_of(tmp_path, times=times)
    plan, ends = held_out.plan(run, 200), held_out.edges(run)
    assert torch.bincount(plan.stratum).tolist() == [16] * 4
    for t, stratum in zip(plan.t.tolist(), plan.stratum.tolist(), strict=True):
        assert ends[stratum] <= t <= ends[stratum + 1]
    if times == "uniform":
        assert ends == [0.0, 0.25, 0.5, 0.75, 1.0]
    else:
        quarter = draws.logit_normal(torch.tensor([0.25]))
        assert ends[1] == pytest.approx(float(quarter))


def test_noises_do_not_depend_on_what_is_asked_at_once_but_on_the_epoch(tmp_path):
    first = held_out.noise(run_of(tmp_path), slice(0, 5), (2,))
    assert torch.equal(first[2:], held_out.noise(run_of(tmp_path), slice(2, 5), (2,)))
    assert not torch.equal(first, held_out.noise(run_of(tmp_path, epoch=1), slice(0, 5), (2,)))


def test_rows_near_the_noise_are_at_one_time_of_other_samples_and_change_with_the_epoch(tmp_path):
    plan, later = (held_out.near_the_noise(run_of(tmp_path, epoch=epoch), 200) for epoch in (0, 1))
    assert torch.equal(plan.t, torch.full((64,), 0.9)) and len(set(plan.sample.tolist())) == 64
    assert plan.points.tolist() == list(range(200)), "any of them may be behind so much noise"
    assert set(plan.sample.tolist()) != set(later.sample.tolist())
    few = held_out.near_the_noise(run_of(tmp_path), 16)
    assert torch.bincount(few.sample).tolist() == [4] * 16
    many = held_out.near_the_noise(run_of(tmp_path, num=2000), 5000)
    assert len(many.t) == held_out.NEAR_ROWS


def test_where_nothing_is_held_out_samples_of_training_stand_in_with_a_word(finished, caplog):
    with caplog.at_level(logging.WARNING):
        held = held_out.samples(finished)
    assert not held.held_out
    assert len(held.batch.x_0) == finished.partition.contents.rows
    assert "set data.holdout" in caplog.text


def test_what_a_run_holds_out_is_what_it_is_valued_on(prepared, tmp_path):
    run = prepared("data.holdout=0.1", name="held")
    (run.path / "partition").unlink()
    partition.partition(run)
    held = held_out.samples(run)
    assert held.held_out
    assert len(held.batch.x_0) == run.partition.contents.holdout > 300
    assert held.batch.label is not None


def test_a_part_that_a_run_has_grown_by_here_is_valued_on_what_was_held_out_of_its_data(grown):
    run, private = grown(0.1)
    held = held_out.samples(run)
    own, part = run.partition.contents.holdout, private.partition.contents.holdout
    assert held.held_out and torch.bincount(held.batch.cluster)[3] == part > 300
    assert len(held.batch.x_0) == len(held.batch.label) == own + part


def test_where_nothing_is_held_out_its_samples_of_training_stand_in_too(grown):
    run, private = grown(0)
    held = held_out.samples(run)
    sizes = [*run.partition.contents.sizes, private.partition.contents.rows]
    assert not held.held_out and torch.bincount(held.batch.cluster).tolist() == sizes


def test_of_a_part_that_was_made_elsewhere_nothing_is_known(grown):
    run, _ = grown(0, made_here=False)
    assert int(held_out.samples(run).batch.cluster.max()) == 2

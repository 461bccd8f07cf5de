import math
import os
import signal

import pytest
import torch

from atoll.config import TrainConfig
from atoll.errors import Interrupted, TrainingError
from atoll.models.checkpoint import read_tensors
from atoll.runs import read_json, read_lines
from atoll.train import jobs, loop, scaling
from tests.interruptions import stop_when


def states(folder):
    """Everything that training remembers at its end."""
    pointer = read_json(folder / "state" / "latest.json")
    return pointer["step"], read_tensors(folder / "state" / pointer["file"])


def assert_equal(left, right):
    assert left[0] == right[0]
    assert left[1].keys() == right[1].keys()
    kinds = {key.split("/")[0] for key in left[1]}
    assert kinds - {"scale"} == {"model", "ema", "optimiser"}
    different = [key for key in left[1] if not torch.equal(left[1][key], right[1][key])]
    assert different == []


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_ten_steps_are_five_and_five(prepared, monkeypatch, caplog, precision):
    caplog.set_level("INFO")
    whole, halves = (prepared(f"expert.precision={precision}", name=name) for name in ("whole", "halves"))
    jobs.expert(whole, 0)
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="stopped at step 6 of 10"):
        stop_when(patch, lambda step, _: step == 5)
        jobs.expert(halves, 0)
    assert not halves.expert(0).done
    torch.manual_seed(123)  # what the process did before does not matter
    assert "resumed" not in caplog.text
    jobs.expert(halves, 0)
    assert "expert-00: resumed from step 6" in caplog.text
    assert_equal(states(whole.expert(0).path), states(halves.expert(0).path))
    assert [line["step"] for line in read_lines(halves.expert(0).path / "metrics.jsonl")] == [2, 4, 6, 8, 10]
    assert ("scale/scale" in states(whole.expert(0).path)[1]) == (precision == "float16")


def test_seeds_and_jobs_differ(prepared):
    first, second, other = prepared(name="a"), prepared("seed=1", name="b"), prepared(name="c")
    jobs.expert(first, 0)
    jobs.expert(second, 0)
    jobs.expert(other, 1)
    key = "model/head.bias"
    values = [states(run.expert(k).path)[1][key] for run, k in ((first, 0), (second, 0), (other, 1))]
    assert not torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_training_lowers_the_loss(prepared):
    run = prepared("expert.steps=60", "expert.log_every=10")
    jobs.expert(run, 0)
    losses = [line["loss"] for line in read_lines(run.expert(0).path / "metrics.jsonl")]
    assert losses[-1] < 0.9 * losses[0]  # sixteen channels cannot carry a patch of 49 pixels


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(prepared, monkeypatch):
    run = prepared("expert.save_every=4", "expert.log_every=1")
    take = loop.Steps.take

    def poisoned(steps, batch):
        taken = take(steps, batch)
        if steps.state.step == 7:
            taken.losses[taken.t.argmax()] = math.nan
        return taken

    monkeypatch.setattr(loop.Steps, "take", poisoned)
    with pytest.raises(
        TrainingError, match=r"not finite at step 6 \(first for t from 0.75 to 1; gradient norm \d"
    ):
        jobs.expert(run, 0)
    assert states(run.expert(0).path)[0] == 4
    assert not run.expert(0).done


def test_learning_rate_by_hand():
    config = TrainConfig(steps=110, warmup=10, decay="cosine")
    assert loop.learning_rate(config, 0) == 0.1
    assert loop.learning_rate(config, 9) == 1.0
    assert loop.learning_rate(config, 10) == 1.0
    assert math.isclose(loop.learning_rate(config, 60), 0.5)
    assert loop.learning_rate(config, 109) < 1e-3
    flat = TrainConfig(steps=110, warmup=0)
    assert loop.learning_rate(flat, 0) == loop.learning_rate(flat, 109) == 1


def test_the_average_by_hand(prepared):
    """Three values of one weight, averaged with the young decays 2/11 and 3/12 and 4/13."""
    run = prepared("expert.steps=3", "expert.save_every=1")
    seen: list[torch.Tensor] = []
    take = loop.Steps.take

    def watched(steps, batch):
        if not seen:
            seen.append(steps.state.parameters[0].detach().clone())
        result = take(steps, batch)
        seen.append(steps.state.parameters[0].detach().clone())
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Steps, "take", watched)
        jobs.expert(run, 0)
    expected = seen[0]
    for decay, value in zip((2 / 11, 3 / 12, 4 / 13), seen[1:], strict=True):
        expected = decay * expected + (1 - decay) * value
    name = next(iter(key for key in states(run.expert(0).path)[1] if key.startswith("ema/")))
    found = states(run.expert(0).path)[1]
    first = [key for key in found if key.startswith("ema/") and found[key].shape == expected.shape]
    assert name
    assert any(torch.allclose(found[key], expected, atol=1e-7) for key in first)


def test_the_average_ends_at_the_decay_of_the_recipe():
    assert loop.ema_decay(TrainConfig(ema=0.99), 10**6) == 0.99
    assert loop.ema_decay(TrainConfig(ema=0.99), 1) == 2 / 11


def test_gradients_are_clipped(prepared):
    """With a tiny clip, Adam's first moment after one step is at most (1 - β₁) times the clip."""
    run = prepared("expert.steps=1", "expert.clip=1e-3")
    jobs.expert(run, 0)
    moments = [value for key, value in states(run.expert(0).path)[1].items() if "/exp_avg/" in key]
    norm = torch.cat([moment.flatten() for moment in moments]).norm()
    assert math.isclose(norm.item(), 0.1 * 1e-3, rel_tol=1e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_runs_and_stays_near(prepared, precision):
    exact, rounded = (prepared(f"expert.precision={name}", name=name) for name in ("float32", precision))
    jobs.expert(exact, 0)
    jobs.expert(rounded, 0)
    a, b = (read_lines(run.expert(0).path / "metrics.jsonl")[0]["loss"] for run in (exact, rounded))
    assert a != b
    assert abs(a - b) < 0.02 * a
    kept = states(rounded.expert(0).path)[1]
    assert {value.dtype for key, value in kept.items() if key != "scale/good_steps"} == {torch.float32}


def losses(run):
    return [line["loss"] for line in read_lines(run.expert(0).path / "metrics.jsonl")]


@pytest.mark.parametrize("setting", ["expert.micro_batch=3", "expert.recompute=true"])
def test_memory_is_saved_without_changing_the_result(prepared, setting):
    """Parts of the batch one after the other, or activations computed twice: the same gradients."""
    plain, frugal = prepared(name="plain"), prepared(setting, name="frugal")
    for run in (plain, frugal):
        jobs.expert(run, 0)
    assert losses(plain) == pytest.approx(losses(frugal), rel=1e-4)


def test_what_only_concerns_the_machine_may_change_between_two_starts(prepared):
    run = prepared("expert.steps=10")
    stop_at(run, 4)
    other = prepared("expert.steps=10", "expert.micro_batch=2", "expert.save_every=5", name="other")
    other.path = run.path
    jobs.expert(other, 0)
    assert run.expert(0).done


def stop_at(run, step):
    """Train until asked to stop after this step."""
    take = loop.Steps.take

    def interrupted(steps, batch):
        if steps.state.step == step:
            os.kill(os.getpid(), signal.SIGINT)
        return take(steps, batch)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(loop.Steps, "take", interrupted)
        jobs.expert(run, 0)


def test_muon_resumes_bit_for_bit_and_learns(prepared):
    settings = ("expert.optimiser=muon", "expert.steps=40")
    whole, halves = prepared(*settings, name="whole"), prepared(*settings, name="halves")
    jobs.expert(whole, 0)
    stop_at(halves, 5)
    jobs.expert(halves, 0)
    assert_equal(states(whole.expert(0).path), states(halves.expert(0).path))
    assert any("momentum_buffer" in key for key in states(whole.expert(0).path)[1])
    assert losses(whole)[-1] < losses(whole)[0]


def test_a_state_that_is_not_finite_is_never_saved(prepared, monkeypatch):
    """The poison comes between two lines of metrics, and a save before the next line."""
    run = prepared("expert.save_every=4", "expert.log_every=100")
    take = loop.Steps.take

    def poisoned(steps, batch):
        taken = take(steps, batch)
        return taken._replace(norm=taken.norm * math.inf) if steps.state.step == 7 else taken

    monkeypatch.setattr(loop.Steps, "take", poisoned)
    with pytest.raises(TrainingError, match=r"step 6 \(only its gradient is not finite; gradient norm inf"):
        jobs.expert(run, 0)
    assert states(run.expert(0).path)[0] == 4


def test_metrics_tell_the_loss_by_time(prepared):
    run = prepared("expert.log_every=10")
    jobs.expert(run, 0)
    line = read_lines(run.expert(0).path / "metrics.jsonl")[-1]
    parts = [line[f"loss_t{low}"] for low in ("0.00", "0.25", "0.50", "0.75")]
    assert min(parts) < line["loss"] < max(parts)


def test_the_batch_of_the_monolith_is_shared(prepared):
    run = prepared("expert.batch=30", "expert.batch_of=monolith")
    assert run.config.expert_for(0).batch == 10
    seen = []
    take = loop.Steps.take

    def watched(steps, batch):
        seen.append(len(batch.x_0))
        return take(steps, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Steps, "take", watched)
        jobs.expert(run, 0)
    assert set(seen) == {10}


def test_an_overflow_is_skipped_and_training_goes_on(prepared, monkeypatch):
    """A scale that is far too large makes the first gradients infinite; the steps after that count."""
    monkeypatch.setattr(scaling, "INITIAL", 2.0**60)
    run = prepared(
        "expert.precision=float16", "expert.steps=60", "expert.log_every=60", "expert.save_every=60"
    )
    jobs.expert(run, 0)
    _, kept = states(run.expert(0).path)
    taken = {value.item() for key, value in kept.items() if key.startswith("optimiser/step/")}
    assert len(taken) == 1
    assert 0 < taken.pop() < 60
    assert kept["scale/scale"] < 2.0**60
    assert math.isfinite(losses(run)[0])


def test_a_small_network_trains_with_one_thread_whoever_starts_it(prepared, monkeypatch):
    """Unless the user says otherwise; afterwards the process has its threads again."""
    seen, take = [], loop.Steps.take

    def looking(steps, batch):
        seen.append(torch.get_num_threads())
        return take(steps, batch)

    monkeypatch.setattr(loop.Steps, "take", looking)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    try:
        jobs.expert(prepared("expert.steps=2", name="small"), 0)
        after = torch.get_num_threads()
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        jobs.expert(prepared("expert.steps=2", name="asked"), 0)
    finally:
        torch.set_num_threads(1)
    assert (seen, after) == ([1, 1, 2, 2], 2)

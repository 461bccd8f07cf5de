import shutil

import pytest
import torch

from atoll.data.store import Reader
from atoll.errors import ConfigError, CorruptError, IsolationError, RunError, StaleError
from atoll.models import checkpoint, conditions
from atoll.runs import read_json
from atoll.train import jobs, loop


def weights(stage):
    return checkpoint.read_tensors(stage.path / checkpoint.WEIGHTS)


def own_copy(run, keep=None):
    """Replace the linked partition by a copy; with `keep`, of that cluster alone."""
    source = (run.path / "partition").resolve()
    (run.path / "partition").unlink()
    if keep is None:
        shutil.copytree(source, run.path / "partition")
    else:
        shutil.copytree(source / f"cluster-{keep:02d}", run.cluster(keep).path)


def test_an_expert_needs_nothing_but_its_own_cluster(prepared):
    whole, island = prepared(name="whole"), prepared(name="island")
    own_copy(island, keep=1)
    (island.path / "data").unlink()
    jobs.expert(whole, 1)
    jobs.expert(island, 1)
    left, right = weights(whole.expert(1)), weights(island.expert(1))
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_an_expert_that_reaches_for_another_cluster_fails(prepared, monkeypatch):
    run = prepared()
    take = loop.Steps.take

    def curious(steps, batch):
        next(Reader([run.cluster(2)], 4, 0).batches())
        return take(steps, batch)

    monkeypatch.setattr(loop.Steps, "take", curious)
    with pytest.raises(IsolationError, match="cluster-02"):
        jobs.expert(run, 1)
    assert not run.expert(1).done


def test_a_finished_job_is_a_no_op_and_a_changed_one_stops(prepared):
    run = prepared()
    jobs.expert(run, 0)
    before = read_json(run.expert(0).path / "done.json")
    jobs.expert(run, 0)
    assert read_json(run.expert(0).path / "done.json") == before
    changed = prepared("expert.lr=0.5", name="other")
    changed.path = run.path
    with pytest.raises(StaleError, match="other settings"):
        jobs.expert(changed, 0)
    jobs.expert(changed, 0, start_over=True)
    assert read_json(run.expert(0).path / "done.json")["made_from"] != before["made_from"]


def test_how_samples_are_drawn_later_does_not_touch_experts(prepared):
    run, other = prepared(), prepared("sample.steps=7", "router.steps=9", name="other")
    jobs.expert(run, 0)
    other.path = run.path
    jobs.expert(other, 0)


def test_the_router_learns_the_clusters(prepared):
    run = prepared("router.steps=150", "router.log_every=150", "router.batch=32")
    stage = jobs.router(run)
    router, blueprint = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)
    assert blueprint.clusters == 3
    batch = next(Reader([run.cluster(k) for k in range(3)], 300, 1).batches())
    guess = router(batch.x_0, torch.full((300,), 0.02)).argmax(1)
    assert (guess == batch.cluster).float().mean() > 0.7


def test_averaged_weights_are_what_is_published(prepared):
    run = prepared()
    stage = jobs.expert(run, 0)
    pointer = read_json(stage.path / "state" / "latest.json")
    state = checkpoint.read_tensors(stage.path / "state" / pointer["file"])
    assert all(torch.equal(value, state[f"ema/{name}"]) for name, value in weights(stage).items())


def test_there_is_no_expert_without_a_cluster(prepared):
    with pytest.raises(ConfigError, match="experts 0 to 2"):
        jobs.expert(prepared(), 3)


def test_without_clusters_there_is_nothing_to_train(prepared):
    run = prepared()
    (run.path / "partition").unlink()
    with pytest.raises(RunError, match="not finished"):
        jobs.expert(run, 0)


def test_a_flipped_byte_in_a_cluster_is_found(prepared):
    run = prepared()
    own_copy(run)
    victim = next(run.cluster(0).path.glob("*.parquet"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CorruptError, match=victim.name):
        jobs.expert(run, 0)
    assert not run.expert(0).done


def test_two_processes_do_not_train_the_same_expert(prepared):
    run = prepared()
    with jobs._alone(run.expert(0).path), pytest.raises(RunError, match="another process"):
        jobs.expert(run, 0)
    jobs.expert(run, 0)


def test_classes_reach_the_network_and_are_hidden_now_and_then(prepared, monkeypatch):
    run = prepared("condition.kind=class", "condition.dropout=0.5", "expert.steps=20", "expert.batch=32")
    seen: list[int] = []
    hide = conditions.hide

    def watched(label, hidden, classes):
        told = hide(label, hidden, classes)
        assert told is not None
        seen.extend(told.tolist())
        return told

    monkeypatch.setattr(conditions, "hide", watched)
    jobs.expert(run, 0)
    assert 0.4 < seen.count(10) / len(seen) < 0.6
    assert len(set(seen)) > 3

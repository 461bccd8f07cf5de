import shutil

import pytest
import torch

from atoll import config
from atoll.data import partition
from atoll.data.store import Reader
from atoll.errors import ConfigError, CorruptError, Interrupted, IsolationError, RunError, StaleError
from atoll.flow import draws
from atoll.models import checkpoint, conditions, numbered
from atoll.models import expert as expert_room
from atoll.runs import Run, read_json, read_lines
from atoll.runs.locks import alone
from atoll.sampling.opening import open_model
from atoll.train import jobs, loop
from tests.interruptions import stop_when


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
    changed.expert(0).clear()
    jobs.expert(changed, 0)
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
    with pytest.raises(RunError, match="is not finished"):
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
    with alone(run.expert(0).path), pytest.raises(RunError, match="another process"):
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


def losses(stage):
    return [line["loss"] for line in read_lines(stage.path / "metrics.jsonl")]


@pytest.mark.each(6)
@pytest.mark.parametrize("path", ["linear", "cosine", "linear-beta", "scaled-linear"])
@pytest.mark.parametrize("prediction", ["velocity", "noise", "data", "v"])
def test_every_objective_trains_and_is_written_down(prepared, path, prediction):
    plain = ("expert.steps=2", "expert.weighting=uniform")
    run = prepared(f"expert.path={path}", f"expert.prediction={prediction}", *plain)
    stage = jobs.expert(run, 0)
    _, blueprint = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)
    assert blueprint.objective == checkpoint.Objective(path=path, prediction=prediction)
    # A new network answers zero, so that its first loss is the mean square of what it is to predict.
    first = losses(stage)[0]
    expected = {"velocity": 1.3, "noise": 1.0, "data": 0.4, "v": 0.7}[prediction]
    assert expected / 2 < first < 2 * expected


def test_an_override_reaches_its_cluster_only(prepared):
    run = prepared('expert.override=[{clusters=[1], path="cosine", prediction="noise", steps=4}]')
    first, second = jobs.expert(run, 0), jobs.expert(run, 1)
    objectives = [checkpoint.read_blueprint(s.path / checkpoint.CONFIG).objective for s in (first, second)]
    assert [objective.prediction for objective in objectives] == ["velocity", "noise"]
    assert [stage.contents.steps for stage in (first, second)] == [10, 4]
    plain = prepared(name="plain")
    plain.path = run.path
    jobs.expert(plain, 0)  # the override of cluster 1 is none of expert 0's business
    with pytest.raises(StaleError, match="other settings"):
        jobs.expert(plain, 1)


def test_a_mixed_run_samples_as_one(prepared):
    run = prepared('expert.override=[{clusters=[1], path="cosine", prediction="noise"}]')
    for k in range(3):
        jobs.expert(run, k)
    jobs.router(run)
    ensemble = open_model(run.path)
    kinds = [type(ensemble.ensemble.experts[k]).__name__ for k in range(3)]
    assert kinds == ["DiT", "Shrunk", "DiT"]
    for strategy in ("full", "top-1", "ancestral"):
        assert ensemble.sample(4, strategy=strategy, steps=3).isfinite().all()


@pytest.fixture
def noise_expert(prepared):
    """A finished expert that predicts the noise on the cosine path."""
    run = prepared("expert.path=cosine", "expert.prediction=noise", name="older")
    return jobs.expert(run, 0)


def test_an_expert_is_taken_as_it_is(prepared, noise_expert):
    folder = noise_expert.path
    same = ["expert.path=cosine", "expert.prediction=noise"]
    run = prepared(f"expert.init={folder}", "expert.steps=0", *same)
    stage = jobs.expert(run, 1)
    assert stage.contents.steps == 0
    left, right = weights(noise_expert), weights(stage)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)
    alone = open_model(folder).sample(2, steps=3)
    assert alone.shape == (2, 1, 28, 28)


def test_training_goes_on_from_another_expert(prepared, noise_expert):
    same = ["expert.path=cosine", "expert.prediction=noise"]
    run = prepared(f"expert.init={noise_expert.path}", "expert.steps=2", *same)
    stage = jobs.expert(run, 0)
    assert losses(stage)[0] < losses(noise_expert)[0]
    other = jobs.expert(prepared(*same, "seed=3", name="other"), 0)
    changed = prepared(f"expert.init={other.path}", "expert.steps=2", *same, name="changed")
    changed.path = run.path
    with pytest.raises(StaleError, match="other init"):
        jobs.expert(changed, 0)


def test_a_damaged_init_is_found_before_anything_is_written(prepared, noise_expert):
    damaged = weights(noise_expert)
    damaged["head.bias"] += 1
    checkpoint.write_tensors(noise_expert.path / checkpoint.WEIGHTS, damaged)
    run = prepared(f"expert.init={noise_expert.path}", "expert.path=cosine", "expert.prediction=noise")
    with pytest.raises(CorruptError, match="damaged"):
        jobs.expert(run, 0)
    assert not run.expert(0).path.exists()


def test_an_expert_of_another_objective_is_refused_or_converted(prepared, noise_expert):
    init = f"expert.init={noise_expert.path}"
    with pytest.raises(ConfigError, match="predicts noise on the cosine path"):
        jobs.expert(prepared(init, name="a"), 0)
    exact = jobs.expert(prepared(init, "expert.convert=exact", "expert.steps=3", name="b"), 0)
    blueprint = checkpoint.read_blueprint(exact.path / checkpoint.CONFIG)
    assert (blueprint.objective.path, blueprint.objective.prediction) == ("cosine", "noise")
    published = jobs.expert(prepared(init, "expert.convert=published", "expert.steps=3", name="c"), 0)
    blueprint = checkpoint.read_blueprint(published.path / checkpoint.CONFIG)
    assert blueprint.objective == checkpoint.Objective(rounded=True)
    for stage in (exact, published):
        assert open_model(stage.path).sample(2, steps=3).isfinite().all()


def test_the_loss_of_a_converted_expert_is_that_of_the_velocity(prepared, noise_expert, monkeypatch):
    """Trained through the wrapper: what the loss sees is the exact velocity of the unchanged network."""
    seen: list[torch.Tensor] = []
    velocity = expert_room.velocity

    def watched(*arguments):
        seen.append(velocity(*arguments))
        return seen[-1]

    monkeypatch.setattr(expert_room, "velocity", watched)
    run = prepared(f"expert.init={noise_expert.path}", "expert.convert=exact", "expert.steps=1")
    stage = jobs.expert(run, 0)
    drawn = draws.training_draws(0, "expert-00", 0, seen[0].shape, 0.0)
    batch = next(Reader([run.cluster(0)], 8, 0).batches())
    expected = (seen[0] - (drawn.noise - batch.x_0)).square().mean()
    assert losses(stage)[0] == pytest.approx(expected.item(), rel=1e-4)


def test_one_network_has_the_low_noise_of_all(prepared, monkeypatch):
    small = ("steps=2", "batch=4", "precision='float32'")
    run = prepared(*(f"{part}.{one}" for part in ("start", "shared", "expert") for one in small))
    jobs.start(run)
    times: dict[str, list[float]] = {}
    taken = loop.Steps.gradients

    def gradients(steps, batch):
        losses, t = taken(steps, batch)
        times.setdefault(steps.task.name, []).extend(t.tolist())
        return losses, t

    monkeypatch.setattr(loop.Steps, "gradients", gradients)
    jobs.shared(run)
    for k in range(run.config.partition.clusters):
        jobs.expert(run, k)
    assert max(times["expert-shared"]) < 0.5 < min(times["expert-00"])
    assert run.shared.contents.below == 0.5
    assert run.shared.contents.rows == sum(run.partition.contents.sizes)
    assert run.shared.record.made_from["init"] == run.start.digest
    x_t, low, high = torch.randn(2, 1, 28, 28), torch.full((2,), 0.3), torch.full((2,), 0.7)
    whole = open_model(run.path, strategy="ancestral").ensemble.experts[1]
    shared, own = (
        checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)[0]
        for stage in (run.shared, run.expert(1))
    )
    with torch.inference_mode():
        assert torch.equal(whole(x_t, low), shared(x_t, low, None))
        assert torch.equal(whole(x_t, high), own(x_t, high, None))
        assert not torch.equal(whole(x_t, low), own(x_t, low, None))
        alone = open_model(run.expert(1).path, precision="float32").ensemble.experts[0]
        assert torch.equal(alone(x_t, low), shared(x_t, low, None)), "an expert of a run is never without"


TOLD = ("start.condition=cluster", "start.steps=12", "start.batch=8", "start.lr=0.01", "expert.steps=1")


def network_of(stage):
    return checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)[0]


def test_a_start_is_told_clusters_and_experts_begin_with_their_own(prepared, monkeypatch):
    run, seen = prepared(*TOLD, "start.steps=40"), list[tuple[int, int]]()
    number = jobs._number

    def watched(blueprint, batch, drawn):
        told = number(blueprint, batch, drawn)
        seen.extend(zip(told.tolist(), batch.cluster.tolist(), strict=True))
        return told

    monkeypatch.setattr(jobs, "_number", watched)
    jobs.start(run)
    clusters = run.config.partition.clusters
    hidden = sum(told == clusters for told, _ in seen) / len(seen)
    assert 0.05 < hidden < 0.16
    assert all(told == own for told, own in seen if told != clusters)
    assert {own for _, own in seen} == set(range(clusters))
    assert set(run.start.record.files) == {checkpoint.WEIGHTS, checkpoint.CONFIG, numbered.FILE}
    shifts = checkpoint.read_tensors(run.start.path / numbered.FILE)[numbered.SHIFTS]
    assert shifts.shape[0] == clusters and (shifts.norm(dim=1) > 0).all()
    x_t, t = torch.randn(3, 1, 28, 28), torch.rand(3)
    answers = []
    for k in range(clusters):
        network, _ = jobs.untrained(run, k)
        expected = numbered.tell(network_of(run.start), run.start.path / numbered.FILE, k)
        answers.append(network(x_t, t, None))
        assert torch.equal(answers[-1], expected(x_t, t, None))
    assert not torch.equal(answers[0], answers[1])
    jobs.expert(run, 0)
    assert run.expert(0).record.made_from["init"] == run.start.digest


def test_experts_of_clusters_that_a_start_was_not_told_begin_as_the_start(prepared):
    """Of another partition, of data of one's own, and after an export, which says nothing of clusters."""
    run = prepared(*TOLD)
    jobs.start(run)
    copy = prepared(f"expert.init={run.start.path}", name="same")
    other = prepared(f"expert.init={run.start.path}", "partition.clusters=2", name="other")
    (other.path / "partition").unlink()
    partition.partition(other)
    x_t, t = torch.randn(3, 1, 28, 28), torch.rand(3)
    start = network_of(run.start)(x_t, t, None)
    assert torch.equal(jobs.untrained(other, 0)[0](x_t, t, None), start)
    assert not torch.equal(jobs.untrained(copy, 0)[0](x_t, t, None), start)


def test_a_start_that_is_told_more_is_another(prepared):
    run = prepared(*TOLD)
    jobs.start(run)
    plain = Run(run.path, config.validate({**run.config.model_dump(), "start": {"steps": 12}}, "plain"))
    with pytest.raises(StaleError, match="told"):
        jobs.start(plain)


def test_a_told_start_goes_on_from_where_it_stopped(prepared):
    settings = (*TOLD, "start.save_every=4", "start.precision=float32", "expert.precision=float32")
    whole, halves = prepared(*settings, name="whole"), prepared(*settings, name="halves")
    jobs.start(whole)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        stop_when(patch, lambda step, taken: step == 6)
        jobs.start(halves)
    jobs.start(halves)
    for name in (checkpoint.WEIGHTS, numbered.FILE):
        left, right = (checkpoint.read_tensors(run.start.path / name) for run in (whole, halves))
        assert all(torch.equal(left[key], right[key]) for key in left)


def test_a_missing_init_is_named(prepared, tmp_path):
    with pytest.raises(ConfigError, match="holds no finished expert"):
        jobs.expert(prepared(f"expert.init={tmp_path}"), 0)

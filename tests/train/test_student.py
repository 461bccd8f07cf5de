import pytest
import torch

import atoll
from atoll.data.store import Reader
from atoll.errors import ConfigError, CorruptError, Interrupted, RunError, StaleError
from atoll.flow import draws, path
from atoll.models import checkpoint
from atoll.runs import Run, read_json, read_lines
from atoll.sampling.roster import Roster
from atoll.train import distil, jobs, student
from tests.interruptions import stop_when
from tests.train.test_jobs import losses, weights
from tests.train.test_loop import assert_equal, states


def test_the_first_loss_is_the_mean_square_of_what_the_own_expert_says(taught):
    run = taught(steps=1, log_every=1, precision="float32")
    stage = student.dense(run)
    batch = next(Reader([run.cluster(k) for k in range(3)], 8, 0).batches())
    drawn = draws.training_draws(0, "student", 0, batch.x_0.shape, 0.0)
    x_t = path.point(batch.x_0, drawn.noise, drawn.t)
    squares = []
    for row, k in enumerate(batch.cluster.tolist()):
        expert = atoll.load(run.expert(k).path, precision="float32")
        squares.append(expert.velocity(x_t[row : row + 1], drawn.t[row : row + 1]).square().mean())
    # a new network answers zero
    assert losses(stage)[0] == pytest.approx(torch.stack(squares).mean().item(), rel=1e-4)


@pytest.mark.parametrize("who", ["label", "ensemble", "sampled"])
@pytest.mark.thorough(who="sampled")
def test_a_student_learns_from_every_teacher(taught, who):
    run = taught(steps=60, log_every=10, teacher=who)
    stage = student.dense(run)
    assert losses(stage)[-1] < 0.9 * losses(stage)[0]
    assert stage.contents.steps == 60
    assert ("router" in stage.record.made_from) == (who != "label")


def test_ten_steps_are_five_and_five(taught, monkeypatch):
    run = taught()
    student.dense(run)
    whole = states(run.student.path)
    again = taught()
    again.student.clear()
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="stopped at step 6 of 10"):
        stop_when(patch, lambda step, _: step == 5)
        student.dense(again)
    assert not again.student.done
    torch.manual_seed(5)
    student.dense(again)
    assert_equal(whole, states(again.student.path))


def test_a_finished_student_is_a_no_op_and_changed_teachers_stop(taught):
    run = taught()
    before = read_json(student.dense(run).path / "done.json")
    student.dense(run)
    student.dense(taught(resident=1, save_every=7))  # how it is done does not matter
    assert read_json(run.student.path / "done.json") == before
    with pytest.raises(StaleError, match="other router, settings"):
        student.dense(taught(teacher="ensemble"))
    with pytest.raises(StaleError, match="other init"):
        student.dense(taught(init="expert"))


def test_teachers_take_turns_in_memory(taught, monkeypatch):
    most: list[int] = []
    get = Roster.__getitem__

    def counted(roster, index):
        expert = get(roster, index)
        most.append(len(roster._held))
        return expert

    run = taught()
    student.dense(run)
    everyone = states(run.student.path)
    monkeypatch.setattr(Roster, "__getitem__", counted)
    run.student.clear()
    student.dense(taught(resident=1))
    assert max(most) == 1
    assert_equal(everyone, states(run.student.path))


def test_a_student_starts_from_the_expert_of_the_largest_cluster(taught):
    run = taught(init="expert", lr=1e-12)
    stage = student.dense(run)
    shares = run.partition.contents.priors
    own = weights(run.expert(shares.index(max(shares))))
    assert all(torch.allclose(value, own[key], atol=1e-6) for key, value in weights(stage).items())


@pytest.mark.parametrize(("init", "said"), [("average", "share a start"), ("start", r"or set expert\.init")])
def test_without_a_common_start_there_is_neither_a_mean_nor_a_start(taught, init, said):
    with pytest.raises(ConfigError, match=said):
        student.dense(taught(init=init))


@pytest.mark.parametrize("init", ["average", "start"])
def test_students_of_experts_with_one_start(prepared, init):
    start = jobs.expert(prepared("partition.clusters=1", name="start"), 0)
    tiny = ["student.steps=1", "student.batch=8", "student.lr=1e-12", f"student.init={init}"]
    run = prepared(f"expert.init={start.path}", "expert.steps=3", "sample.against='start'", *tiny)
    for k in range(3):
        jobs.expert(run, k)
    stage = student.dense(run)
    shares = run.partition.contents.priors
    every = [weights(run.expert(k) if init == "average" else start) for k in range(3)]
    for key, value in weights(stage).items():
        mean = sum(share * one[key] for share, one in zip(shares, every, strict=True))
        torch.testing.assert_close(value, mean, atol=1e-6, rtol=1e-5)
    one = atoll.load(run.path, model="student")  # which has no start to move away from
    assert one.sample(2).isfinite().all()


def test_an_expert_of_another_size_is_no_start(taught):
    with pytest.raises(ConfigError, match="another network"):
        student.dense(taught(init="expert", width=24))


def test_a_student_of_another_size_learns_too(taught):
    stage = student.dense(taught(width=24, depth=2))
    blueprint = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
    assert (blueprint.network.width, blueprint.network.depth, blueprint.network.patch) == (24, 2, (7, 7))


def test_mixed_teachers_teach_velocities(prepared):
    mixed = 'expert.override=[{clusters=[1], path="cosine", prediction="noise"}]'
    run = prepared(mixed, "student.steps=4", "student.batch=8", "student.log_every=1")
    for k in range(3):
        jobs.expert(run, k)
    stage = student.dense(run)
    blueprint = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
    assert blueprint.objective == checkpoint.Objective()
    assert all(0 < loss < 5 for loss in losses(stage))


def test_a_damaged_teacher_is_found_before_anything_is_written(taught, tmp_path):
    import shutil

    run = taught()
    source = (run.path / "experts").resolve()
    (run.path / "experts").unlink()
    shutil.copytree(source, run.path / "experts")
    damaged = weights(run.expert(1))
    damaged["head.bias"] += 1
    checkpoint.write_tensors(run.expert(1).path / checkpoint.WEIGHTS, damaged)
    with pytest.raises(CorruptError, match="damaged"):
        student.dense(run)
    assert not run.student.path.exists()


def test_without_experts_there_is_nobody_to_learn_from(prepared):
    run = prepared("student.steps=2")
    with pytest.raises(RunError, match="experts/00 is not finished"):
        student.dense(run)
    with pytest.raises(ConfigError, match=r"no \[student\]"):
        student.dense(prepared(name="none"))


def test_a_student_is_an_ordinary_model(taught, tmp_path):
    from atoll.sampling import opening, sample

    run = taught()
    student.dense(run)
    one = atoll.load(run.path / "student")
    assert len(one.ensemble.experts) == 1 and one.ensemble.router is None
    assert one.defaults.steps == 3  # as the recipe says
    by_path, by_name = one.sample(4), opening.open_model(run.path, model="student").sample(4)
    assert torch.equal(by_path, by_name)
    assert not torch.equal(by_path, atoll.load(run.path).sample(4))
    inner = Run.open(run.path / "student")
    assert inner.config.partition.clusters == 1
    assert inner.config.expert.width == run.config.student.width
    assert inner.data.digest == run.data.digest
    assert inner.partition.contents.sizes == (sum(run.partition.contents.sizes),)
    assert run.student.contents.taught_by == 3
    written = sample.sample(inner, tmp_path / "o", num=4)
    assert (tmp_path / "o" / "grid.png").is_file() and written["experts"] == [0] * 4
    with pytest.raises(RunError, match="atoll student"):
        opening.open_model(run.path, model="few-step")


def test_classes_and_baked_guidance(prepared):
    tiny = ["student.steps=4", "student.batch=8", "student.guidance=3.0", "student.log_every=1"]
    run = prepared("condition.kind=class", *tiny)
    for k in range(3):
        jobs.expert(run, k)
    stage = student.dense(run)
    assert checkpoint.read_blueprint(stage.path / checkpoint.CONFIG).classes == 10
    plain = Run(run.path, run.config)
    assert student.dropout(plain, checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)) == 0
    samples = atoll.load(stage.path).sample(4, label=["Bag"])
    assert samples.isfinite().all()
    assert len(read_lines(stage.path / "metrics.jsonl")) == 4


def test_samples_drawn_from_experts_take_the_place_of_data(taught):
    run = taught(data="drawn", drawn=40)
    (run.path / "data").unlink()  # nobody needs the data
    stage = distil.distil(run)[-1]
    sizes = [run.drawn(k).contents.rows for k in range(3)]
    shares = run.partition.contents.priors
    assert sizes == [max(1, round(40 * share)) for share in shares]
    assert stage.contents.rows == sum(sizes)

import itertools
import shutil

import pytest
import torch

import atoll
from atoll.errors import ConfigError, Interrupted, StaleError
from atoll.flow import draws, maps, path, solver
from atoll.models import checkpoint
from atoll.runs import Run, read_json
from atoll.sampling import sample
from atoll.train import few_step, jobs, student
from tests.conftest import linked, with_student
from tests.interruptions import stop_when
from tests.train.test_jobs import losses, weights
from tests.train.test_loop import assert_equal, states

FEW = {
    "steps": 6,
    "trajectories": 4,
    "grid": 4,
    "batch": 16,
    "lr": 1e-3,
    "log_every": 1,
    "save_every": 2,
    "compile": "off",
}


def network_of(stage, steps=False):
    """The network in a folder, as it is or told of steps."""
    found, blueprint = checkpoint.load(stage.path / checkpoint.WEIGHTS, stage.path / checkpoint.CONFIG)
    if not steps:
        return found
    new = blueprint.model_copy(update={"steps": True}).build()
    return student.with_weights(new, dict(found.state_dict()))


def told(network, x_t, t, r):
    return network(x_t, t, None, r)


@pytest.fixture(scope="module")
def _dense(_tiny_finished, tmp_path_factory):
    """A dense student, made once for all tests."""
    finished = linked(_tiny_finished, tmp_path_factory.mktemp("dense") / "finished")
    return student.dense(with_student(finished, few=FEW)).path


@pytest.fixture
def pupil(taught, _dense):
    """A run with a dense student, and a few-step one to be."""

    def make(**few):
        run = taught(few={**FEW, **few})
        shutil.copytree(_dense, run.student.path, dirs_exist_ok=True)
        assert run.student.done
        return run

    return make


def test_a_flow_map_starts_as_the_student_that_it_is_made_from(pupil):
    run = pupil()
    dense, started = network_of(run.student), network_of(run.student, steps=True)
    x_t, t, r = torch.randn(5, 1, 28, 28), torch.rand(5), torch.rand(5)
    assert torch.equal(dense(x_t, t), started(x_t, t))
    assert torch.equal(dense(x_t, t), told(started, x_t, t, t * r))


def test_lessons_come_one_after_the_other(pupil):
    run = pupil()
    stage = few_step.few_step(run)
    warm = run.stage("few-step", "trajectories")
    assert (warm.contents.steps, stage.contents.steps) == (4, 6)
    assert warm.record.made_from == {**stage.record.made_from, "lesson": "trajectories"}
    blueprint = checkpoint.read_blueprint(stage.path / checkpoint.CONFIG)
    assert blueprint.steps
    moved = weights(stage)["trunk.step.out.weight"]
    assert moved.abs().max() > 0  # it has learnt of steps
    before = read_json(stage.path / "done.json")
    few_step.few_step(run)
    assert read_json(stage.path / "done.json") == before
    with pytest.raises(StaleError, match="other settings"):
        few_step.few_step(pupil(delta=1e-2))


def test_trajectories_alone(pupil):
    """Without the second lesson the first one is the student."""
    run = pupil(steps=0)
    stage = few_step.few_step(run)
    assert stage.contents.steps == 4
    assert not run.stage("few-step", "trajectories").path.exists()
    assert weights(stage)["trunk.step.out.weight"].abs().max() > 0
    assert atoll.load(stage.path).sample(2, steps=2).isfinite().all()


def test_the_first_loss_of_trajectories_by_hand(pupil):
    """Sixteen pairs on two trajectories of four steps of the dense student; large losses count less."""
    run = pupil(floor=0.5)
    few_step.few_step(run)
    dense = network_of(run.student)
    drawn = draws.training_draws(0, "few-step/trajectories", 0, (16, 1, 28, 28), 0.0, pairs=1.0)
    points, step = [drawn.noise[:2]], solver.DPM()
    times = [2 * i / (4 + i) for i in range(5)]  # i / 4 with a shift of 2
    for i in range(4, 0, -1):
        points.append(step(dense, points[-1], times[i], times[i - 1]))
    expected = []
    for row in range(16):
        start = max(1, int(torch.ceil(drawn.t[row] * 4)))
        end = min(int(drawn.r[row] * 4), start - 1)
        if drawn.uniform[row] < 0.75:  # a step of a walk of 1, 2 or 4
            long = [4, 2, 1][int(drawn.uniform[row] * 4)]
            end = (start - 1) // long * long
            start = end + long
        x_t, x_r = points[4 - start][row % 2], points[4 - end][row % 2]
        target = (x_t - x_r) / (times[start] - times[end])
        predicted = dense(x_t[None], torch.tensor([times[start]]))[0]
        loss = (predicted - target).square().mean()
        expected.append(loss / (loss + 0.5))
    found = losses(run.stage("few-step", "trajectories"))[0]
    assert found == pytest.approx(torch.stack(expected).mean().item(), rel=1e-3)


@pytest.mark.parametrize(("who", "power"), [("student", 1.0), ("label", 0.0)])
def test_the_first_loss_of_meanflow_by_hand(pupil, who, power):
    """Against autograd's derivative along the teacher's velocity."""
    from atoll.data.store import Reader

    run = pupil(trajectories=0, teacher=who, pairs=0.5, floor=0.5)
    stage = few_step.few_step(run)
    batch = next(Reader([run.cluster(k) for k in range(3)], 16, 0).batches())
    drawn = draws.training_draws(0, "few-step/few-step", 0, batch.x_0.shape, 0.0, pairs=0.5)
    x_t = path.point(batch.x_0, drawn.noise, drawn.t)
    network = network_of(run.student, steps=True)
    if who == "student":
        v = network_of(run.student)(x_t, drawn.t)
    else:
        experts = [network_of(run.expert(k)) for k in range(3)]
        rows = [experts[k](x_t[i : i + 1], drawn.t[i : i + 1]) for i, k in enumerate(batch.cluster.tolist())]
        v = torch.cat(rows)
    delta = 0.02
    after, before = (drawn.t + delta).clamp(max=1), torch.maximum(drawn.t - delta, drawn.r)
    ahead = told(network, x_t + (after - drawn.t).view(-1, 1, 1, 1) * v, after, drawn.r)
    behind = told(network, x_t + (before - drawn.t).view(-1, 1, 1, 1) * v, before, drawn.r)
    slope = (ahead - behind) / (after - before).view(-1, 1, 1, 1)
    target = v - (drawn.t - drawn.r).view(-1, 1, 1, 1) * slope
    errors = (told(network, x_t, drawn.t, drawn.r) - target).square().flatten(1).mean(1)
    assert (drawn.r < drawn.t).sum() == 8
    assert losses(stage)[0] == pytest.approx((errors / (errors + 0.5) ** power).mean().item(), rel=2e-3)


def test_the_first_halving_by_hand(pupil):
    from atoll.data.store import Reader

    run = pupil(method="progressive", grid=8, fewest=2, steps=2)
    stage = few_step.few_step(run)
    assert [run.stage("few-step", name).done for name in ("steps-004", "steps-002")] == [True, False]
    assert stage.done
    batch = next(Reader([run.cluster(k) for k in range(3)], 16, 0).batches())
    drawn = draws.training_draws(0, "few-step/steps-004", 0, batch.x_0.shape, 0.0)
    dense = network_of(run.student)
    expected = []
    for i in range(16):
        steps = 4 if drawn.uniform[i] < 0.5 else 8
        index = int(drawn.t[i] * steps)
        t, r = torch.tensor([(index + 1) / steps]), torch.tensor([index / steps])
        x_t = path.point(batch.x_0[i : i + 1], drawn.noise[i : i + 1], t)
        target = dense(x_t, t)
        if steps == 4:
            half = (t + r) / 2
            target = (target + dense(x_t - (t - half) * target, half)) / 2
        expected.append((dense(x_t, t) - target).square().mean())
    found = losses(run.stage("few-step", "steps-004"))[0]
    assert found == pytest.approx(torch.stack(expected).mean().item(), rel=1e-2)


def test_every_level_of_halving_is_asked_for(pupil, monkeypatch):
    run = pupil(method="progressive", grid=16, fewest=2, steps=1, batch=64)
    seen: list[torch.Tensor] = []
    two = maps.two_steps

    def watched(velocity, x_t, t, r):
        seen.append((1 / (t - r)).round())
        return two(velocity, x_t, t, r)

    monkeypatch.setattr(maps, "two_steps", watched)
    few_step.few_step(run)
    assert [set(steps.tolist()) for steps in seen] == [{8}, {4}, {2}]
    assert all(0.3 < len(steps) / 64 < 0.7 for steps in seen)
    # the others keep what the lessons before have taught
    asked: list[torch.Tensor] = []
    network = network_of(run.stage("few-step", "steps-004"))
    network.register_forward_pre_hook(
        lambda module, inputs: asked.append((1 / (inputs[1] - inputs[3])).round())
    )
    monkeypatch.setattr(few_step, "_loaded", lambda stage: network)
    run.few_step.path.joinpath("done.json").unlink()
    shutil.rmtree(run.few_step.path / "state")
    few_step.few_step(run)
    assert set(asked[0].tolist()) == {4} == set(asked[1].tolist())
    assert set(asked[2].tolist()) == {4, 8, 16}


@pytest.mark.parametrize(
    "few",
    [pytest.param({}, marks=pytest.mark.thorough), {"method": "progressive", "grid": 4, "fewest": 1}],
)
def test_interrupted_lessons_end_bit_for_bit_alike(pupil, monkeypatch, few):
    run = pupil(**few)
    few_step.few_step(run)
    whole = states(run.few_step.path)
    taken = stop_when(monkeypatch, lambda _, count: count in (3, 8))
    run.few_step.clear()
    with pytest.raises(Interrupted):
        few_step.few_step(run)
    with pytest.raises(Interrupted):
        few_step.few_step(run)
    few_step.few_step(run)
    assert len(taken) == sum(stage.contents.steps for stage in finished_lessons(run))
    assert_equal(whole, states(run.few_step.path))


def finished_lessons(run):
    folders = [*run.few_step.path.glob("trajectories"), *run.few_step.path.glob("steps-*")]
    return [run.few_step, *(run.stage("few-step", folder.name) for folder in folders)]


def test_one_network_samples_in_any_number_of_steps(pupil, tmp_path):
    run = pupil(sample_steps=2)
    few_step.few_step(run)
    one = atoll.load(run.path / "few-step")
    assert one.ensemble.maps and (one.defaults.steps, one.defaults.shift) == (2, 2.0)
    network, noise = network_of(run.few_step), draws.sample_noise(0, range(3), (1, 28, 28))
    for steps in (1, 2, 4, 8):
        x_t = noise
        times = solver.times(steps, 2.0)
        for start, end in itertools.pairwise(times):
            t, r = torch.full((3,), start), torch.full((3,), end)
            x_t = x_t - (start - end) * network(x_t, t, None, r)
        torch.testing.assert_close(one.sample(3, steps=steps), x_t, rtol=1e-4, atol=1e-5)
    written = sample.sample(run, tmp_path / "o", model="few-step", num=3)
    assert len(written["experts"]) == 3
    with pytest.raises(ConfigError, match="bake it in"):
        one.sample(2, guidance=2.0)


@pytest.mark.thorough
def test_its_velocity_serves_any_solver(pupil):
    run = pupil()
    few_step.few_step(run)
    one, network = atoll.load(run.few_step.path), network_of(run.few_step)
    x_t, t = torch.randn(4, 1, 28, 28), torch.rand(4)
    torch.testing.assert_close(one.velocity(x_t, t), told(network, x_t, t, t))
    assert solver.integrate(one.velocity, x_t, 3).isfinite().all()


def test_both_distillations_in_one(taught):
    """No dense student: experts teach the flow map, which starts from one of them."""
    run = taught(steps=0, few={**FEW, "teacher": "label", "init": "expert"})
    stage = few_step.few_step(run)
    assert not run.student.done
    assert "student" not in stage.record.made_from
    assert atoll.load(stage.path).sample(2).isfinite().all()


@pytest.mark.thorough
def test_a_flow_map_of_classes(prepared):
    few = "student.few={steps=2, trajectories=2, grid=4, batch=8}"
    run = prepared("condition.kind=class", "student.steps=2", "student.batch=8", few)
    for k in range(3):
        jobs.expert(run, k)
    student.dense(run)
    stage = few_step.few_step(run)
    assert atoll.load(stage.path).sample(3, label=["Bag", "Coat"]).shape == (3, 1, 28, 28)


def test_what_cannot_be_is_refused(taught):
    with pytest.raises(ConfigError, match="leaves it at trajectories"):
        taught(few={"steps": 0, "trajectories": 0})
    with pytest.raises(ConfigError, match="does not stand for all"):
        taught(few={"method": "progressive", "teacher": "label"})
    with pytest.raises(ConfigError, match="make their ratio 2"):
        taught(few={"method": "progressive", "grid": 12, "fewest": 4})
    with pytest.raises(ConfigError, match="no dense student to learn from"):
        taught(steps=0, few={})
    with pytest.raises(ConfigError, match="must be 'float32'"):
        taught(few={"precision": "bfloat16"})
    with pytest.raises(ConfigError, match=r"no \[student\.few\]"):
        few_step.few_step(taught())


def test_a_plain_run_knows_nothing_of_steps(finished):
    assert isinstance(finished, Run)
    assert "trunk.step.out.weight" not in weights(finished.expert(0))

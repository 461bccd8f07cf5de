"""All training on a GPU on paper: devices never meet, steps never wait, and the numbers are the CPU's."""

import contextlib
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from atoll.config import ExpertConfig, NetworkConfig, TrainConfig
from atoll.data.store import Batch
from atoll.data.text import TextStates
from atoll.errors import Interrupted
from atoll.models import conditions, dit
from atoll.models.checkpoint import Blueprint, read_tensors
from atoll.runs import Stage
from atoll.sampling.ensemble import Ensemble
from atoll.train import few_step, hardware, jobs, loop, moving, optimiser, rounds, sharding, student
from atoll.train import state as states
from atoll.train.ranks import Ranks
from atoll.train.teaching import Teachers
from atoll.train.window import Window
from tests.interruptions import stop_when
from tests.pretend_gpu import GPU, DeviceError, Ledger, pretended_gpu

SHAPE, CLASSES, TEXT, EXPERTS, SIZE = (2, 4, 4), 5, 6, 3, 6
WATCHED = 2
"""Steps that are watched: what one does all do, and the second finds what the first left behind."""
KINDS: list[conditions.Kind] = ["class", "text"]


def blueprint(role="expert", kind="class", **network):
    return Blueprint(
        role=role,
        network=NetworkConfig(width=16, depth=1, heads=2, patch=(2, 2), **network),
        shape=SHAPE,
        condition=kind,
        classes=CLASSES if kind == "class" else 0,
        text=TEXT if kind == "text" else 0,
        clusters=EXPERTS,
    )


def batch() -> Batch:
    text = TextStates(torch.randn(SIZE, 4, TEXT), torch.rand(SIZE, 4) > 0.3, torch.randn(SIZE, TEXT))
    return Batch(torch.randn(SIZE, *SHAPE), torch.arange(SIZE) % CLASSES, torch.arange(SIZE) % EXPERTS, text)


def task(model: nn.Module, loss: loop.Loss, **settings) -> loop.Task:
    config = TrainConfig(batch=SIZE, compile="off", **{"precision": "bfloat16", **settings})
    return loop.Task("job", model, loss, None, config, 0, 0.1, Stage(None))


def take_steps(gpu: Ledger, of: loop.Task, count: int = WATCHED) -> Window:
    """Some steps, of which all but the first are watched: it makes the optimiser's state."""
    steps, window = loop.Steps(of, GPU), Window(0, Ranks(), "job", 0.1)
    window.add(steps.take(batch()))
    gpu.waits.clear()
    for _ in range(count):
        window.add(steps.take(batch()))
    return window


def awake(network: nn.Module) -> nn.Module:
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.1
    return network.to(GPU).eval().requires_grad_(False)


def teachers(kind: conditions.Kind, who, guidance: float) -> Teachers:
    experts = [awake(blueprint(kind=kind).build()) for _ in range(EXPERTS)]
    router = awake(blueprint("router", kind, text="pooled").build())
    about = {"classes": CLASSES if kind == "class" else 0, "text": TEXT if kind == "text" else 0}
    priors = torch.full((EXPERTS,), 1 / EXPERTS, device=GPU)
    return Teachers(Ensemble(experts, priors, SHAPE, router, **about), who, guidance, (0.2, 0.8))


HOW = {
    "plain": {},
    "muon": {"optimiser": "muon"},
    "parts": {"micro_batch": 4, "recompute": True},
    "float16": {"precision": "float16"},
}


@pytest.mark.each(4)
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_an_expert_never_wait(kind, how):
    with pretended_gpu() as gpu:
        plan = blueprint(kind=kind, qk_norm=True)
        window = take_steps(gpu, task(plan.build(), jobs._expert_loss(plan, ExpertConfig()), **how))
        assert not gpu.waits, gpu.told()
        window.log(4, None)
        assert gpu.places() == {"train/window.py _read": 1}
        window.check()  # all of it has been seen
        assert gpu.places() == {"train/window.py _read": 1}
    assert gpu.products.keys() == {getattr(torch, how.get("precision", "bfloat16"))}


def test_steps_of_a_start_that_is_told_clusters_never_wait():
    with pretended_gpu() as gpu:
        plan = blueprint().model_copy(update={"numbered": EXPERTS})
        take_steps(gpu, task(plan.build(), jobs._expert_loss(plan, ExpertConfig())))
    assert not gpu.waits, gpu.told()


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_a_router_never_wait(kind):
    with pretended_gpu() as gpu:
        plan = blueprint("router", kind, text="pooled")
        take_steps(gpu, task(plan.build(), jobs.router_loss(plan)))
    assert not gpu.waits, gpu.told()


@pytest.mark.each(3)
@pytest.mark.parametrize(("kind", "guidance"), [("class", 1.0), ("class", 2.0), ("text", 2.0)])
@pytest.mark.parametrize("who", ["label", "ensemble", "sampled"])
def test_steps_of_a_student_wait_only_for_a_teacher_that_is_drawn(kind, who, guidance):
    with pretended_gpu() as gpu:
        plan = blueprint(kind=kind)
        take_steps(gpu, task(plan.build(), student.dense_loss(plan, teachers(kind, who, guidance))))
    drawn = {"train/teaching.py _teacher_of_each": WATCHED} if who == "sampled" else {}
    assert gpu.places() == drawn, gpu.told()


def float16_with_muon() -> loop.Task:
    plan = blueprint()
    return task(plan.build(), jobs._expert_loss(plan, ExpertConfig()), precision="float16", optimiser="muon")


def test_muon_in_float16_waits_once_a_step():
    with pretended_gpu() as gpu:
        take_steps(gpu, float16_with_muon())
    assert gpu.places() == {"train/optimiser.py step": WATCHED}, gpu.told()


EXPECTED = {
    "train/window.py _read",  # once for a line of metrics
    "train/loop.py __init__",  # the network comes to the device
    "models/checkpoint.py load",  # so do teachers
    "sampling/building.py build",
    "train/state.py restore",  # and what a round begins with
    "train/state.py <dictcomp>",  # what was trained comes back
}


def everything(stage: Stage) -> dict[str, dict[str, torch.Tensor]]:
    return {path.name: read_tensors(path) for path in sorted(stage.path.glob("*.safetensors"))}


def on_both(train, first, second) -> Ledger:
    """Train on the CPU and on a GPU on paper: what comes out is the same.

    But for rounding: weights that are mapped from a file lie in memory otherwise than copied ones.
    """
    plain = everything(train(first))
    with pretended_gpu() as gpu:
        paper = everything(train(second))
    assert plain.keys() == paper.keys()
    for name, tensors in plain.items():
        torch.testing.assert_close(tensors, paper[name], rtol=1e-4, atol=1e-4)
    assert torch.cuda.is_available() is False
    return gpu


QUIET = {"precision": "float32", "compile": "off", "log_every": 10, "save_every": 5}


def said(section: str, settings) -> list[str]:
    return [f"{section}.{key}={value}" for key, value in settings.items()]


def test_an_expert_from_beginning_to_end(prepared):
    runs = (prepared(*said("expert", QUIET), name=name) for name in ("cpu", "gpu"))
    gpu = on_both(lambda run: jobs.expert(run, 0), *runs)
    assert gpu.places().keys() <= EXPECTED, gpu.told()
    assert gpu.places()["train/window.py _read"] == 2  # at step 5 to check what is saved, at step 10 to log


@pytest.mark.thorough
def test_a_router_from_beginning_to_end(prepared):
    runs = (prepared(*said("router", QUIET), name=name) for name in ("cpu", "gpu"))
    gpu = on_both(jobs.router, *runs)
    band = {"train/jobs.py _measured_band", "sampling/routing.py measure_band"}
    assert gpu.places().keys() <= EXPECTED | band, gpu.told()


def test_an_expert_goes_on_from_a_state_that_was_written_meanwhile(prepared):
    """The state goes through pinned memory that is used again, while steps go on."""
    from tests.train.test_loop import assert_equal, stop_at
    from tests.train.test_loop import states as last

    whole, halves = (prepared(*said("expert", QUIET), name=name) for name in ("whole", "halves"))
    jobs.expert(whole, 0)
    with pretended_gpu():
        stop_at(halves, 7)
    with pretended_gpu():
        jobs.expert(halves, 0)
    assert_equal(last(whole.expert(0).path), last(halves.expert(0).path))


def test_a_student_from_beginning_to_end(taught):
    def dense(settings):
        run = taught(**settings)
        run.student.clear()
        return student.dense(run)

    gpu = on_both(dense, QUIET, QUIET)
    assert gpu.places().keys() <= EXPECTED, gpu.told()


@pytest.mark.parametrize("method", ["meanflow", "progressive"])
@pytest.mark.thorough(method="progressive")
def test_a_few_step_student_from_beginning_to_end(taught, method):
    few = {"steps": 4, "trajectories": 2, "grid": 4, "fewest": 2, "method": method, "compile": "off"}
    few |= {"log_every": 4}
    run = taught(**QUIET, few=few if method == "meanflow" else {**few, "trajectories": 0})
    student.dense(run)
    gpu = on_both(lambda _: (run.few_step.clear(), few_step.few_step(run))[1], None, None)
    assert gpu.places().keys() <= EXPECTED, gpu.told()


@pytest.mark.thorough
def test_rounds_from_beginning_to_end(taught):
    run = taught(**QUIET, sites={"inner": 5})
    gpu = on_both(lambda _: (run.student.clear(), rounds.all_rounds(run))[1], None, None)
    assert gpu.places().keys() <= EXPECTED, gpu.told()


def test_older_cards_train_in_float16(prepared):
    run = prepared("expert.compile=off")
    with pretended_gpu(capability=(7, 5)) as gpu:
        jobs.expert(run, 0)
    assert gpu.products.keys() == {torch.float16}


@contextlib.contextmanager
def two_ranks():
    """The first of two ranks; the other one answers as this one does, and both train alone."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with mock.patch.object(sharding, "spread", lambda model, *_: model):
            yield Ranks(0, 2)
    finally:
        dist.destroy_process_group()


def of_two_ranks(run, ranks: Ranks) -> loop.Task:
    run.expert(0).begin({})
    return jobs._task(run, run.expert(0), [run.cluster(0)], run.config.expert, ranks)[0]


def test_ranks_exchange_what_is_on_the_gpu(prepared):
    """A line of metrics and right after it a save: there is nothing to check, and nothing is sent."""
    run = prepared("expert.log_every=2", "expert.save_every=2", "expert.compile=off")
    with pretended_gpu(), two_ranks() as ranks:
        assert ranks.from_first(lambda: {"a": [1, "b"]}) == {"a": [1, "b"]}
        loop.train(of_two_ranks(run, ranks), GPU)
    assert states.Keeper(run.expert(0).path / "state", run.config.expert, Ranks())._entries()[0]["step"] == 10


def test_ranks_agree_to_stop_at_once(prepared, monkeypatch):
    run = prepared("expert.steps=50", "expert.log_every=50", "expert.save_every=50", "expert.compile=off")
    stop_when(monkeypatch, lambda step, _: step == 5)
    stopped = pytest.raises(Interrupted, match="stopped at step 8 of 50")  # asked in step 6, read two later
    with pretended_gpu() as gpu, two_ranks() as ranks, stopped:
        loop.train(of_two_ranks(run, ranks), GPU)
    assert "train/stopping.py reached" not in gpu.places(), gpu.told()


def test_compiling_is_tried_on_a_gpu_and_given_up_with_one_line(prepared, monkeypatch, caplog):
    def no_compiler(*_, **__):
        raise RuntimeError("backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", no_compiler)
    run = prepared("expert.compile=auto")
    with pretended_gpu():
        jobs.expert(run, 0)
    assert [record.getMessage() for record in caplog.records if record.name == hardware.__name__] == [
        "torch.compile does not work here (InvalidCxxCompiler: No working C++ compiler found); "
        "training goes on without it"
    ]
    keeper = states.Keeper(run.expert(0).path / "state", run.config.expert, Ranks())
    assert keeper.decisions()["compile"] is False


# What must not go unnoticed.


class NoBuffer(dit.TimeEmbedding):
    def __init__(self, width, scale=1000.0):
        nn.Module.__init__(self)
        self.scale, self.frequency = scale, torch.ones(128)
        self.hidden, self.out = nn.Linear(256, width), nn.Linear(width, width)


def remembered_here(self, parameter):
    known = self.state[parameter]
    if not known:
        known.update(step=torch.zeros(()), exp_avg=torch.zeros_like(parameter))
        known["exp_avg_sq"] = torch.zeros_like(parameter)
    return known


def null_here(condition, classes):
    return conditions.hide(condition, torch.ones(len(condition), dtype=torch.bool), classes)


def label_here(whole, rows, device):
    part = moving.to_device(whole, rows, device)
    return Batch(part.x_0, whole.label[rows], part.cluster, part.text, part.host_cluster)


def average_here(model, optimisers, scale=None, make=states.TrainingState.__init__):
    def build(self, *given):
        make(self, *given)
        self.ema = [average.cpu() for average in self.ema]

    return build


def check_here(self):
    self.ranks.any(False, torch.device("cpu"))


PLANTED = {
    "draws stay on the CPU": mock.patch.object(loop, "draws_to_device", lambda drawn, rows, _: drawn),
    "labels stay on the CPU": mock.patch.object(loop, "to_device", label_here),
    "frequencies are no buffer": mock.patch.object(dit, "TimeEmbedding", NoBuffer),
    "the optimiser counts on the CPU": mock.patch.object(optimiser.AdamW, "_remembered", remembered_here),
    "the null condition is made on the CPU": mock.patch.object(conditions, "null", null_here),
    "the average stays on the CPU": mock.patch.object(
        states.TrainingState, "__init__", average_here(None, None)
    ),
}


@pytest.mark.parametrize("mistake", PLANTED.values(), ids=PLANTED)
def test_a_planted_mistake_is_caught(mistake):
    with pretended_gpu() as gpu, mistake, pytest.raises(DeviceError):
        plan = blueprint()
        take_steps(gpu, task(plan.build(), student.dense_loss(plan, teachers("class", "label", 2.0))))


def test_a_planted_exchange_of_the_cpu_is_caught(prepared):
    run = prepared("expert.log_every=2", "expert.save_every=2", "expert.compile=off")
    caught = pytest.raises(DeviceError, match=r"allreduce_.*cpu\[\] in train/ranks.py sum")
    with pretended_gpu(), two_ranks() as ranks, mock.patch.object(Window, "check", check_here), caught:
        loop.train(of_two_ranks(run, ranks), GPU)


def test_a_planted_wait_is_named():
    def unpinned(value, device):
        return value.to(device, non_blocking=True)

    with pretended_gpu() as gpu, mock.patch.object(moving, "move", unpinned):
        plan = blueprint()
        take_steps(gpu, task(plan.build(), jobs._expert_loss(plan, ExpertConfig())))
    assert gpu.waits
    assert {wait.what for wait in gpu.waits} == {"copy from memory that is not pinned"}
    places = {"train/moving.py to_device", "train/moving.py <genexpr>"}
    assert places <= gpu.places().keys(), gpu.told()


@pytest.mark.thorough
def test_an_adapter_from_beginning_to_end(prepared):
    """Only the adapter comes back from the device; the base is there once and stays as it is."""
    settings = [
        *said("expert", QUIET),
        "start={steps = 2, batch = 8}",
        "expert.adapter={rank = 2, tokens = 1}",
    ]

    def train(run):
        jobs.start(run)
        return jobs.expert(run, 0)

    runs = [prepared(*settings, name=name) for name in ("cpu", "gpu")]
    gpu = on_both(train, *runs)
    assert gpu.places().keys() <= EXPECTED, gpu.told()
    tensors = read_tensors(runs[1].expert(0).path / "weights.safetensors")
    assert all(name.endswith(("lora_a", "lora_b", "keys", "values")) for name in tensors)
    assert any(bool(value.any()) for name, value in tensors.items() if name.endswith("lora_b"))

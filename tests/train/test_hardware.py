import pytest
import torch
from torch import nn

from atoll.config import TrainConfig
from atoll.train import hardware

CPU = torch.device("cpu")


def test_a_decision_stays_on_the_same_device():
    """A measured decision that fell differently after a restart would make another training."""
    first = hardware.decide(TrainConfig(), CPU, {}, lambda: True)
    assert first["compile"] is True
    assert hardware.decide(TrainConfig(), CPU, first, lambda: pytest.fail("measured again")) == first
    moved = {**first, "device": "another"}
    assert hardware.decide(TrainConfig(), CPU, moved, lambda: False)["compile"] is False
    assert hardware.decide(TrainConfig(compile="off"), CPU, first, lambda: True)["compile"] is False


def test_a_short_training_is_not_worth_a_trial(monkeypatch):
    monkeypatch.setattr(hardware, "compile_blocks", lambda _: pytest.fail("compiled"))
    steps: list[int] = []
    assert hardware.compiling_pays(nn.Linear(2, 2), lambda: steps.append(1), 1000) is False
    assert steps == [1], "one step tells that"


@pytest.mark.parametrize(("compiled", "expected"), [(0.5, True), (0.99, False)])
def test_a_long_training_is_measured_both_ways(monkeypatch, compiled, expected):
    times = iter([2.0, 1.0, compiled])  # the first step takes longer than any other
    monkeypatch.setattr(hardware, "_seconds", lambda step, repeats=3: next(times))
    done = []
    monkeypatch.setattr(hardware, "compile_blocks", lambda _: done.append("compiled"))
    monkeypatch.setattr(hardware, "uncompile_blocks", lambda _: done.append("undone"))
    assert hardware.compiling_pays(nn.Linear(2, 2), lambda: None, 10_000) is expected
    assert done == ["compiled", "undone"]


def test_a_compiler_that_fails_means_no(monkeypatch):
    def broken(_):
        raise RuntimeError("no g++")

    monkeypatch.setattr(hardware, "compile_blocks", broken)
    monkeypatch.setattr(hardware, "_seconds", lambda step, repeats=3: 1.0)
    assert hardware.compiling_pays(nn.Linear(2, 2), lambda: None, 10_000) is False


def test_a_gpu_compiles_if_that_works(monkeypatch):
    """The smallest program first, then a step; the network is left as it was."""
    done = []

    def probe(program):
        done.append("probe")
        return program

    monkeypatch.setattr(torch, "compile", probe)
    monkeypatch.setattr(hardware, "compile_blocks", lambda _: done.append("compiled"))
    monkeypatch.setattr(hardware, "uncompile_blocks", lambda _: done.append("undone"))
    assert hardware.compiling_works(nn.Linear(2, 2), CPU, lambda: done.append("step"))
    assert done == ["probe", "compiled", "step", "undone"]
    done.clear()
    assert hardware.compiling_works(nn.Linear(2, 2), CPU, None)  # ranks do not take steps for a trial
    assert done == ["probe"]


def test_a_machine_without_a_compiler_falls_back_with_one_line(monkeypatch, caplog, tmp_path):
    """torch's own complaint, not ours: there is no such compiler."""
    from torch._inductor import config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with inductor.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}):
        assert hardware.compiling_works(nn.Linear(2, 2), CPU, None) is False
    torch.compiler.reset()
    [line] = [record.getMessage() for record in caplog.records if record.name == hardware.__name__]
    assert line.startswith("torch.compile does not work here (")
    assert line.endswith("; training goes on without it")
    assert "\n" not in line

import resource

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
    assert hardware.compiling_pays(nn.Linear(2, 2), lambda: None, 1000) is False


@pytest.mark.parametrize(("compiled", "expected"), [(0.5, True), (0.99, False)])
def test_a_long_training_is_measured_both_ways(monkeypatch, compiled, expected):
    times = iter([1.0, compiled])
    monkeypatch.setattr(hardware, "_seconds", lambda step: next(times))
    done = []
    monkeypatch.setattr(hardware, "compile_blocks", lambda _: done.append("compiled"))
    monkeypatch.setattr(hardware, "uncompile_blocks", lambda _: done.append("undone"))
    assert hardware.compiling_pays(nn.Linear(2, 2), lambda: None, 10_000) is expected
    assert done == ["compiled", "undone"]


def test_a_compiler_that_fails_means_no(monkeypatch):
    def broken(_):
        raise RuntimeError("no g++")

    monkeypatch.setattr(hardware, "compile_blocks", broken)
    monkeypatch.setattr(hardware, "_seconds", lambda step: 1.0)
    assert hardware.compiling_pays(nn.Linear(2, 2), lambda: None, 10_000) is False


def test_kept_memory_is_used_again():
    """A buffer of a thousand pages, again and again, asks the kernel for next to none."""
    hardware.keep_memory()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.ones(2**20)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    assert faults() < 1000

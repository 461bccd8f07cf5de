import math

import pytest
import torch

from atoll.errors import TrainingError
from atoll.train import window
from atoll.train.ranks import Ranks
from atoll.train.window import Taken, Window


def test_loss_by_time_by_hand():
    found = window.by_time(torch.tensor([1.0, 3.0, 5.0, 7.0]), torch.tensor([0.0, 0.24, 0.25, 1.0]))
    assert found == {"loss_t0.00": 2.0, "loss_t0.25": 5.0, "loss_t0.75": 7.0}


def opened(*losses, norm=1.0):
    found = Window(10, Ranks(), "job", 1e-3)
    for values in losses:
        found.add(Taken(torch.tensor(values), torch.linspace(0, 1, len(values)), torch.tensor(norm)))
    return found


class Lines:
    def __init__(self):
        self.lines = []

    def write(self, step, **values):
        self.lines.append({"step": step, **values})


def test_a_line_is_the_mean_over_all_steps():
    seen, some = Lines(), opened([1.0, 3.0], [5.0, 7.0], norm=2.0)
    some.log(12, seen)
    assert seen.lines[0]["step"] == 12
    assert seen.lines[0]["loss"] == 4.0
    assert seen.lines[0]["gradient_norm"] == 2.0
    assert (seen.lines[0]["loss_t0.00"], seen.lines[0]["loss_t0.75"]) == (3.0, 5.0)
    assert some.taken == []


def test_what_is_not_finite_is_named_by_step_and_time():
    with pytest.raises(
        TrainingError, match=r"job: the loss is not finite at step 11 \(first for t from 0.75"
    ):
        opened([1.0, 1.0], [1.0, math.nan]).check()
    with pytest.raises(
        TrainingError, match=r"step 10 \(only its gradient.*lower the learning rate \(0.001\)"
    ):
        opened([1.0, 1.0], norm=math.inf).check()


def test_what_was_logged_is_not_asked_about_again(monkeypatch):
    some = opened([1.0, 3.0])
    some.log(11, None)
    monkeypatch.setattr(Ranks, "any", lambda *_: pytest.fail("asked"))
    some.check()


def test_memory_is_told_where_there_is_a_gpu(monkeypatch):
    assert window.gpu_memory(torch.device("cpu")) == {}
    assert window.gpu_memory(torch.device("cuda")) == {}, "nothing was ever put there"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    assert window.gpu_memory(torch.device("cuda", 1)) == {"gpu_bytes": 3.0 * 2**30}

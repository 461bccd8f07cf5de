import io
import json
import sys

import pytest
import torch
from benchmarks._race import Finish, Size, fastest

from atoll import devices
from benchmarks import _card, train

TINY = Size(32, 1, 2, 4, (1, 8, 8), 1, batch=2, classes=3)


@pytest.mark.parametrize("name", ["atoll", "plain"])
def test_a_contender_takes_steps_when_told(name, monkeypatch, capsys):
    """A line in, an answer out: seconds of the best step, and bytes of a card, of which there is none."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n2\n"))
    train.work(name, TINY, "float32", compiled=False)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["bytes"] for answer in answers] == [0, 0]
    assert all(answer["seconds"] > 0 for answer in answers)


def test_the_fastest_setting_of_each_counts():
    finished = {
        "a eager": Finish(3.0, 0, 0.0),
        "a compiled": Finish(5.0, 0, 9.0),
        "b eager": Finish(9.0, 0, 0.0),
    }
    assert fastest(finished, "a") == "a compiled"


def test_a_card_trains_what_fits(monkeypatch):
    monkeypatch.setattr(_card, "free_memory", lambda device: 80e9)
    monkeypatch.setattr(devices, "arithmetic", lambda asked, device: "bfloat16")
    size = train.of_the_card(torch.device("cuda", 0))
    assert (size.width, size.depth, size.heads, size.patch) == (1152, 28, 16, 2)
    assert (size.shape, size.device) == ((4, 32, 32), "cuda:0")
    assert size.batch == _card.sized(80e9).batch


def test_flops_are_forward_and_backward():
    """DiT-XL/2: 118.64 billion multiplications forward (Peebles & Xie, table 4), thrice to train."""
    xl = Size(1152, 28, 16, 2, (4, 32, 32), 1)
    assert train.flops(xl) / 6e9 == pytest.approx(118.64, rel=0.005)

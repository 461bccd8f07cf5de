import os
import signal

import pytest
import torch

from atoll.runs import stop_requests
from atoll.train.ranks import Ranks
from atoll.train.stopping import Agreement


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_becomes_a_question(number):
    before = signal.getsignal(number)
    with stop_requests() as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
    assert signal.getsignal(number) == before


def test_one_rank_agrees_with_itself():
    alone = Agreement(Ranks(), torch.device("cpu"))
    assert [alone.reached(flag) for flag in (False, True)] == [False, True]


def test_on_a_cpu_ranks_know_at_once(monkeypatch):
    monkeypatch.setattr(Ranks, "sum", lambda self, value: value + 1)  # the other rank was asked to stop
    assert Agreement(Ranks(0, 2), torch.device("cpu")).reached(False)

import torch
from torch import nn

from atoll.config import TrainConfig
from atoll.train import sharding
from atoll.train.ranks import Ranks


def test_one_rank_has_all_of_a_network():
    model, value = nn.Linear(2, 2), torch.ones(2)
    assert sharding.spread(model, TrainConfig(), Ranks(), torch.device("cpu")) is model
    with sharding.synchronise(model, last=False):
        pass
    assert sharding.local(value) is value
    assert sharding.whole(value, model.weight) is value
    assert sharding.part_of(value, model.weight) is value


def test_parts_of_a_batch_exchange_gradients_once():
    """What FSDP2 is told before each part: only the last one is followed by an exchange."""

    class Sharded(nn.Module):
        def __init__(self):
            super().__init__()
            self.told = []

        def set_requires_gradient_sync(self, last):
            self.told.append(("sync", last))

        def set_is_last_backward(self, last):
            self.told.append(("last", last))

        def reshard(self):
            self.told.append(("reshard",))

    model = Sharded()
    for last in (False, True):
        with sharding.synchronise(model, last):
            pass
    assert model.told == [("sync", False), ("last", False), ("sync", True), ("last", True)]
    sharding.release(model)
    assert model.told[4:] == [("reshard",)]
    sharding.release(nn.Linear(1, 1))

"""A finished expert is asked about the same noisy samples of its cluster, told what it would be told."""

import torch
from torch import nn

from atoll.config import NetworkConfig
from atoll.data.store import Batch, Reader
from atoll.flow import draws, path
from atoll.models import checkpoint
from atoll.train import holdout, trials
from atoll.train.trials import ROWS, Trial


class Scribe(nn.Module):
    """Answers what it is told, and keeps how many rows it was asked at a time."""

    def __init__(self):
        super().__init__()
        self.device, self.rows, self.told = nn.Parameter(torch.zeros(())), [], []

    def forward(self, x_t, t, condition=None):
        self.rows.append(len(x_t))
        self.told.append(condition)
        return x_t + t.view(-1, 1, 1, 1)


def blueprint(**changes):
    return checkpoint.Blueprint(role="expert", network=NetworkConfig(), shape=(1, 4, 4), **changes)


def batch(rows, label=None):
    x_0 = torch.randn(rows, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return Batch(x_0=x_0, label=label, cluster=torch.zeros(rows, dtype=torch.int64))


def test_samples_and_noise_are_the_same_at_every_time_and_their_difference_is_the_target():
    scribe = Scribe()
    trial = Trial(scribe, blueprint(), batch(100), ROWS + 10, seed=3)
    x_0 = batch(100).x_0[: ROWS + 10]
    noise = torch.randn(x_0.shape, generator=draws.generator(3, "shrinkage"))
    assert torch.equal(trial.target, noise - x_0)
    for time in (0.25, 0.75):
        x_t, t, answer = trial.at(time)
        assert torch.equal(x_t, path.point(x_0, noise, t))
        assert t.unique().tolist() == [time]
        assert torch.equal(answer, x_t + time)
    assert scribe.rows == [ROWS, 10] * 2, "no more at once than memory was planned for"
    assert scribe.told == [None] * 4


def test_each_row_is_told_its_own_class_and_one_without_is_told_nothing():
    label = torch.arange(ROWS + 2) % 3
    label[1] = -1
    scribe = Scribe()
    Trial(scribe, blueprint(condition="class", classes=3), batch(ROWS + 2, label), 1000, seed=0).at(0.5)
    assert torch.cat(scribe.told).tolist() == [0, 3, *(label[2:].tolist())]


def test_samples_are_judged_by_those_that_are_held_out_where_there_are(prepared, monkeypatch):
    cluster, held = prepared().cluster(0), batch(3)
    some, judged = trials.samples(cluster, 4, 0)
    assert torch.equal(some.x_0, Reader([cluster], 1, 0).first(4).x_0)
    assert judged is some
    monkeypatch.setattr(holdout, "read", lambda clusters, shape: held)
    again, judged = trials.samples(cluster, 4, 0)
    assert torch.equal(again.x_0, some.x_0)
    assert judged is held

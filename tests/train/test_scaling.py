"""The scale of the loss moves as torch's own scaler moves it."""

import math

import pytest
import torch
from torch import nn

from atoll.config import TrainConfig
from atoll.train import optimiser, scaling
from atoll.train.scaling import LossScale

CPU = torch.device("cpu")


def test_steps_are_those_of_torchs_scaler(monkeypatch):
    """AdamW under GradScaler and under ours: the same weights, moments and scales, bad steps and all."""
    monkeypatch.setattr(scaling, "INTERVAL", 3)
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(5)), nn.Parameter(torch.empty(5))
    theirs.data.copy_(ours)
    scale, scaler = LossScale(CPU), torch.amp.GradScaler("cpu", growth_interval=3)
    adamw = optimiser.AdamW([ours], 0.1)
    peer = torch.optim.AdamW([theirs], lr=0.05, weight_decay=0.1, fused=True)
    seen = []
    for step in range(12):
        factor = math.inf if step in (2, 3, 9) else 1.0
        (ours.square().sum() * factor * scale.scale).backward()
        assert ours.grad is not None
        scale.unscale([ours.grad])
        skipped, norm = scale.judge(ours.grad.norm())
        adamw.step(0.05, skipped)
        ours.grad = None
        scaler.scale(theirs.square().sum() * factor).backward()
        scaler.step(peer)
        scaler.update()
        theirs.grad = None
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert norm.isfinite()
        seen.append(scale.scale.item())
        assert seen[-1] == scaler.get_scale()
    assert adamw.state[ours]["step"].item() == peer.state[theirs]["step"].item() == 9
    assert min(seen) < scaling.INITIAL < max(seen) * 2


def test_gradients_that_no_scale_can_save_are_reported():
    scale = LossScale(CPU)
    norms = [scale.judge(torch.tensor(math.inf))[1].item() for _ in range(18)]
    assert norms[:16] == [0.0] * 16
    assert norms[16:] == [math.inf] * 2


def test_a_scale_goes_on_where_it_was():
    first, second = LossScale(CPU), LossScale(CPU)
    for norm in (1.0, math.nan, 1.0):
        first.judge(torch.tensor(norm))
    second.restore({name: value.clone() for name, value in first.tensors().items()})
    assert {name: value.item() for name, value in second.tensors().items()} == {
        "scale": scaling.INITIAL / 2,
        "good_steps": 1,
    }


def test_muon_skips_too():
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.randn(4, 4))
    matrix.grad = torch.full((4, 4), math.nan)
    before = matrix.detach().clone()
    optimiser.Muon([matrix], 0.1).step(0.1, torch.ones(()))
    assert torch.equal(matrix, before)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_recipes_may_name_it(precision):
    assert TrainConfig(precision=precision).precision == precision

import copy
from typing import Any

import pytest
import torch
from torch import nn

from atoll.config import NetworkConfig, TrainConfig
from atoll.models.dit import DiT
from atoll.train import optimiser
from tests.models.test_dit import awake

NETWORK = NetworkConfig(width=24, depth=2, heads=2, patch=(2, 2))


def backward(model: nn.Module, step: int) -> None:
    g = torch.Generator().manual_seed(step)
    x_t, t = torch.randn(3, 1, 4, 4, generator=g), torch.rand(3, generator=g)
    model.zero_grad()
    model(x_t, t).square().mean().backward()


def test_adamw_is_torchs_own_bit_for_bit():
    ours: Any = awake(DiT(NETWORK, (1, 4, 4)))
    theirs = copy.deepcopy(ours)
    mine = optimiser.build(ours, TrainConfig(weight_decay=0.1))
    yours = torch.optim.AdamW(theirs.parameters(), weight_decay=0.1, fused=True)
    assert len(mine) == 1
    for step, lr in enumerate((1e-2, 1e-3, 5e-3)):
        backward(ours, step)
        backward(theirs, step)
        mine[0].step(lr)
        yours.param_groups[0]["lr"] = lr
        yours.step()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(left, right)
        assert mine[0].state[left].keys() == yours.state[right].keys()
        assert all(
            torch.equal(mine[0].state[left][key], yours.state[right][key]) for key in yours.state[right]
        )


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest():
    model: Any = awake(DiT(NETWORK, (1, 4, 4)))
    adamw, muon = optimiser.build(model, TrainConfig(optimiser="muon"))
    names = {id(value): name for name, value in model.named_parameters()}
    taken = {names[id(value)] for value in muon.parameters}
    kinds = ("attention.qkv", "attention.out", "up", "down")
    assert taken == {f"trunk.blocks.{i}.{kind}.weight" for i in range(2) for kind in kinds}
    assert len(taken) + len(adamw.parameters) == len(names)


def test_muons_update_is_orthogonal_and_as_large_as_adamws():
    """All but tiny singular values become about alike (Newton-Schulz: 0.7 to 1.2); 0.2 lr per entry."""
    model: Any = awake(DiT(NETWORK, (1, 4, 4)))
    _, muon = optimiser.build(model, TrainConfig(optimiser="muon"))
    weight = model.trunk.blocks[0].attention.out.weight
    before = weight.detach().clone()
    g = torch.Generator().manual_seed(0)
    for parameter in muon.parameters:
        parameter.grad = torch.randn(parameter.shape, generator=g)
    muon.step(0.1)
    update = before - weight.detach()
    values = torch.linalg.svdvals(update)
    assert values.max() / values[:-4].min() < 2
    assert update.square().mean().sqrt() == pytest.approx(0.2 * 0.1, rel=0.3)

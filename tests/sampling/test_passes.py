"""Adapters of one base in one pass: every row as if its adapter were asked alone, guided or not."""

from functools import partial

import pytest
import torch

from atoll.config import AdapterSettings
from atoll.models.sharing import AdaptedExpert, Base
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.grouping import groups
from atoll.sampling.passes import Alone, Together
from atoll.sampling.roster import Roster
from tests.models.test_adapter import SHAPE, network, question
from tests.models.test_sharing import one

COUNT = 3


def ensemble(kin: str | None) -> Ensemble:
    base = Base(network().requires_grad_(False))
    experts = [AdaptedExpert(base, one(AdapterSettings(rank=2, tokens=1), k)) for k in range(COUNT)]
    roster = Roster([partial(experts.__getitem__, k) for k in range(COUNT)], kin=[kin] * COUNT)
    return Ensemble(roster, torch.full((COUNT,), 1 / COUNT), SHAPE, classes=3)


WEIGHTS = {
    "each its own": torch.eye(COUNT)[torch.tensor([0, 1, 2, 1, 1, 0, 2])],
    "two at a time": torch.tensor(
        [[0.5, 0.5, 0.0], [0.0, 0.3, 0.7], [0.2, 0.0, 0.8]] * 2 + [[1.0, 0.0, 0.0]]
    ),
    "everybody": torch.full((7, COUNT), 1 / COUNT),
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize(
    "guidance", [1.0, 2.5, torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 2.0])], ids=["none", "one", "each"]
)
def test_one_pass_and_one_for_each_adapter_are_the_same(weights, guidance):
    x_t, t, told = question("class", 7)
    apart, shared = ensemble(None), ensemble("one base")
    size = 7 * COUNT
    assert len(shared.bundles(groups(weights), 7, size)) == 1
    assert len(apart.bundles(groups(weights), 7, size)) == COUNT
    exact = apart.mixed(weights, x_t, t, told, guidance)
    found = shared.mixed(weights, x_t, t, told, guidance, shared.bundles(groups(weights), 7, size))
    torch.testing.assert_close(found.velocity, exact.velocity, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.disagreement, exact.disagreement, rtol=1e-3, atol=1e-5)


def test_how_many_rows_of_each_adapter_come_again():
    shared = ensemble("one base")
    both = Together([shared.experts[k] for k in range(COUNT)], [2, 4, 1])
    assert both._among(torch.tensor([0, 1, 3, 6])) == [2, 1, 1]
    assert both._among(torch.tensor([5])) == [0, 1, 0]
    assert both._among(torch.tensor([], dtype=torch.long)) == [0, 0, 0]


def test_a_network_of_its_own_is_asked_alone():
    expert = torch.nn.Identity()
    assert Alone(expert).once() is Alone(expert).twice(slice(None)) is expert
    adapter = ensemble("one base").experts[0]
    with pytest.raises(AssertionError, match="with adapters"):
        Together([expert, adapter], [1, 1]).once()

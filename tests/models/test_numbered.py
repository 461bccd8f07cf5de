"""A network told clusters by number, and the networks that come of it when the numbers are settled."""

import pytest
import torch

from atoll.config import NetworkConfig
from atoll.errors import CorruptError
from atoll.models import numbered
from atoll.models.checkpoint import Blueprint, write_tensors

CLUSTERS, CLASSES = 3, 4


def blueprint(kind="none", **network):
    return Blueprint(
        role="expert",
        network=NetworkConfig(width=16, depth=2, heads=2, patch=(2, 2), **network),
        shape=(2, 4, 4),
        condition=kind,
        classes=CLASSES if kind == "class" else 0,
        numbered=CLUSTERS,
    )


def built(plan):
    """A network whose every weight says something."""
    torch.manual_seed(0)
    network = plan.build().double()
    for parameter in network.parameters():
        parameter.data.normal_(std=0.3)
    return network


def settled(plan, network, tmp_path, number=None):
    """What is published of it, and if told a cluster, what an expert of that begins as."""
    weights, shifts = numbered.settled(network.state_dict())
    plain = plan.model_copy(update={"numbered": 0}).build().double()
    plain.load_state_dict(weights)
    numbered.write(tmp_path / numbered.FILE, shifts)
    return plain if number is None else numbered.tell(plain, tmp_path / numbered.FILE, number)


@pytest.mark.parametrize("modulation", ["block", "shared"])
@pytest.mark.parametrize("kind", ["none", "class"])
def test_an_expert_begins_as_the_start_that_is_told_its_cluster(tmp_path, kind, modulation):
    plan = blueprint(kind, modulation=modulation)
    network = built(plan)
    x_t, t = torch.randn(5, 2, 4, 4).double(), torch.rand(5).double()
    condition = torch.arange(5) % CLASSES if kind == "class" else None
    answers = []
    for number in range(CLUSTERS):
        asked = network(x_t, t, condition, cluster=torch.full((5,), number))
        torch.testing.assert_close(settled(plan, network, tmp_path, number)(x_t, t, condition), asked)
        answers.append(asked)
    nothing = network(x_t, t, condition)
    torch.testing.assert_close(settled(plan, network, tmp_path)(x_t, t, condition), nothing)
    assert not any(torch.allclose(nothing, answer) for answer in answers)
    told = torch.full((5,), CLUSTERS)
    assert torch.equal(network(x_t, t, condition, cluster=told), nothing), "the last number tells nothing"


def test_rows_are_told_each_its_own():
    network = built(blueprint())
    x_t, t, numbers = torch.randn(4, 2, 4, 4).double(), torch.rand(4).double(), torch.tensor([2, 0, 3, 1])
    together = network(x_t, t, cluster=numbers)
    alone = [network(x_t[i : i + 1], t[i : i + 1], cluster=numbers[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("shifts", [torch.zeros(2, 16), torch.zeros(3, 8), torch.zeros(16), None])
def test_numbers_of_another_network_are_refused(tmp_path, shifts):
    file = tmp_path / numbered.FILE
    write_tensors(file, {"other": torch.zeros(1)} if shifts is None else {numbered.SHIFTS: shifts})
    plain = blueprint().model_copy(update={"numbered": 0}).build()
    with pytest.raises(CorruptError, match=rf"{numbered.FILE} does not fit .* train it again"):
        numbered.tell(plain, file, 2)

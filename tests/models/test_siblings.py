"""Networks of one build in one pass: every row as if its own network were asked alone."""

import gc
import itertools
import weakref
from typing import Any, get_args

import pytest
import torch
from torch import nn

from atoll.config import NetworkConfig
from atoll.models import siblings
from atoll.models.checkpoint import Objective
from atoll.models.expert import as_expert
from tests.models.test_adapter import KINDS, blueprint, question
from tests.models.test_sharing import part

COUNTS = (2, 1, 3)


def networks(kind: str, objective: Objective | None = None) -> list[nn.Module]:
    made, g = [], torch.Generator().manual_seed(0)
    for _ in COUNTS:
        network = blueprint(kind).build()
        for value in network.parameters():
            value.data = torch.randn(value.shape, generator=g) * 0.3
        made.append(as_expert(network, objective or Objective()))
    return made


def exactly(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@pytest.mark.parametrize("objective", [Objective(), Objective(prediction="noise", path="cosine")], ids=str)
@pytest.mark.parametrize("kind", ["none", "class"])
@pytest.mark.parametrize("how", [torch.inference_mode, torch.no_grad])
def test_each_row_has_its_own_network(kind, objective, how):
    """In double precision: what a network says is converted near the noise by factors of dozens."""
    asked = tuple(exactly(value) for value in question(kind, sum(COUNTS)))
    own = [network.double() for network in networks(kind, objective)]
    ends = list(itertools.accumulate(COUNTS))
    with how():
        found = siblings.together(tuple(own), COUNTS)(*asked)
        pieces = [slice(end - count, end) for end, count in zip(ends, COUNTS, strict=True)]
        expected = [network(*part(asked, rows)) for network, rows in zip(own, pieces, strict=True)]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-9, atol=1e-9)
    assert (found[0] - own[1](*part(asked, slice(0, 1)))[0]).abs().max() > 1e-3, "they differ"


def test_gradients_go_through():
    asked, own = question("none", sum(COUNTS)), networks("none")
    x_t = asked[0].requires_grad_()
    siblings.together(tuple(own), COUNTS)(x_t, *asked[1:]).sum().backward()
    assert (x_t.grad.flatten(1).norm(dim=1) > 0).all()


VARIANTS: list[dict[str, Any]] = [
    {"qk_norm": on, "modulation": modulation, "text": text}
    for on in (False, True)
    for modulation in get_args(NetworkConfig.model_fields["modulation"].annotation)
    for text in get_args(NetworkConfig.model_fields["text"].annotation)
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_only_those_are_kin_of_which_everything_learnt_is_taken(kind, variant):
    plan = blueprint(kind, **variant)
    network = plan.build()
    taken = [module for module in network.modules() if isinstance(module, nn.Linear | nn.Embedding)]
    inside = {id(value) for module in taken for value in module.parameters()}
    if siblings.kin(plan) is not None:
        assert {id(value) for value in network.parameters()} == inside
    elif kind != "text":
        assert variant["qk_norm"] or variant["modulation"] == "shared"


def test_builds_differ():
    assert siblings.kin(blueprint("none")) == siblings.kin(blueprint("none"))
    assert siblings.kin(blueprint("none")) != siblings.kin(blueprint("none", depth=1))


def test_few_are_remembered_and_weights_are_counted_once():
    own = tuple(networks("none"))
    joined = siblings.together(own, COUNTS)
    assert siblings.together(own, COUNTS) is joined
    assert not list(joined.parameters())
    gone = weakref.ref(own[0])
    del own, joined
    siblings.together.cache_clear()
    gc.collect()
    assert gone() is None

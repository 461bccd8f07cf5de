"""What a network sees: of each sample alone, whatever else is in the batch and whatever it could be told."""

import pytest
import torch

from atoll.config import NetworkConfig
from atoll.models import checkpoint
from atoll.models.seen import Seen


@pytest.mark.parametrize("kind", ["none", "class", "text"])
def test_a_network_that_is_told_something_is_told_nothing(kind):
    network = NetworkConfig(width=16, depth=2, heads=2, patch=(4, 4))
    blueprint = checkpoint.Blueprint(
        role="expert", network=network, shape=(1, 8, 8), condition=kind, classes=3, text=5
    )
    seen = Seen(blueprint.build().eval(), blueprint, 0)
    x_0 = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(seen(x_0)[1:], seen(x_0[1:]))
    assert seen.block == 1

import pytest
import torch
from torch import nn

from atoll.errors import ConfigError
from atoll.models.extrapolation import extrapolate


def networks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.mark.parametrize("reach", [0.0, 0.5, 1.0, 2.0])
def test_weights_lie_on_the_line_from_what_the_network_began_with(reach):
    start, expert = networks()
    expected = {
        name: (1 - reach) * start.state_dict()[name] + reach * value
        for name, value in expert.state_dict().items()
    }
    moved = extrapolate(expert, start.state_dict(), reach, "expert 3")
    for name, value in moved.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not any(value.requires_grad for value in moved.parameters())


def test_no_line_leads_to_a_network_of_another_build():
    start, _ = networks()
    with pytest.raises(ConfigError, match=r"expert 3 is of another build .* set sample.extrapolate = 1"):
        extrapolate(nn.Sequential(nn.Linear(3, 4)), start.state_dict(), 2.0, "expert 3")

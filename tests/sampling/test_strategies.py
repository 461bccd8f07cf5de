import pytest
import torch

from atoll.errors import ConfigError
from atoll.sampling import strategies

POSTERIOR = torch.tensor([[0.5, 0.3, 0.15, 0.05]])


def uniform(draws: int) -> torch.Tensor:
    return torch.tensor([[0.1, 0.6, 0.9]])[:, :draws]


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("full", [0.5, 0.3, 0.15, 0.05]),
        ("top-1", [1, 0, 0, 0]),
        ("top-2", [0.625, 0.375, 0, 0]),
        ("threshold-0.3", [0.625, 0.375, 0, 0]),
        ("threshold-1", [1, 0, 0, 0]),
        ("nucleus-0.7", [1, 0, 0, 0]),  # 0 and 1 are kept; 0.1 of their mass falls on 0
        ("sample-1", [1, 0, 0, 0]),
        ("sample-3", [1 / 3, 1 / 3, 1 / 3, 0]),  # 0.1, 0.6 and 0.9 fall on 0, 1 and 2
    ],
)
def test_weights_by_hand(name, weights):
    found = strategies.by_name(name)(POSTERIOR, uniform)
    torch.testing.assert_close(found, torch.tensor([weights], dtype=torch.float32))


@pytest.mark.parametrize(
    "name", ["best", "top-0", "top", "threshold-2", "nucleus-", "sample-0", "ancestral", "auto"]
)
def test_anything_else_is_refused(name):
    with pytest.raises(ConfigError, match="does not weigh"):
        strategies.by_name(name)

import pytest
import torch

from atoll.config import NetworkConfig
from benchmarks import _pictures


@pytest.mark.parametrize(("gigabytes", "width"), [(0.1, 384), (24, 768), (80, 1152)])
def test_eight_experts_fit_a_card(gigabytes, width):
    assert _pictures.network_for(gigabytes * 1e9).width == width


def test_every_strategy_batch_and_precision_is_timed(monkeypatch):
    """As on a GPU with bfloat16 units, on a CPU that pretends to have them."""
    monkeypatch.setenv("ATOLL_CPU_BFLOAT16", "1")
    network = NetworkConfig(width=16, depth=1, heads=2, patch=(4, 4))
    found = _pictures.measure(torch.device("cpu"), network, (1, 8, 8), batches=(1, 3))
    times = found["detail"]["milliseconds of a picture, by strategy, precision and batch"]
    assert set(times) == {"one model", *_pictures.STRATEGIES}
    for by_precision in times.values():
        assert {key: set(value) for key, value in by_precision.items()} == {
            "float32": {"1", "3"},
            "bfloat16": {"1", "3"},
        }
    assert len(found["ratios"]) == len(_pictures.STRATEGIES) + 1
    assert all(ratio > 0 for ratio in found["ratios"].values())

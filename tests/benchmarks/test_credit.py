"""The benchmark of what credit costs: FLOPs that grow as experts do, and the definition of the value."""

import pytest

from atoll.config import NetworkConfig
from benchmarks import credit


def test_flops_grow_no_faster_than_experts(monkeypatch):
    monkeypatch.setattr(credit, "SHAPE", (1, 8, 8))
    for name, width in (("EXPERT", 32), ("ROUTER", 16)):
        monkeypatch.setattr(credit, name, NetworkConfig(width=width, depth=1, heads=2, patch=(2, 2)))
    answer = credit.measure((2, 4), 32, 3, 1)
    assert list(answer) == ["benchmark", "ratios", "detail"]
    values, audit, _ = answer["ratios"].values()
    assert 0.98 < values < 1.2, "a router and a base are asked besides"
    assert audit == pytest.approx(1, abs=0.05)
    assert answer["detail"]["largest relative difference from coalitions"] < 1e-10

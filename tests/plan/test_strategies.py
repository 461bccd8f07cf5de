from pathlib import Path

import pytest

from atoll import config, plan

RECIPES = Path(__file__).parents[2] / "recipes"


def planned(name, *overrides):
    return plan.plan(config.load(RECIPES / f"{name}.toml", overrides))


def test_strategies_cost_what_the_paper_reports():
    expert, router = 308, 26  # GFLOPs of DDM's Table 1
    cost = {
        name: plan.strategy_flops(name, expert, router, 8)
        for name in (
            "ancestral",
            "oracle",
            "top-1",
            "top-2",
            "top-3",
            "sample-1",
            "sample-2",
            "nucleus-0.9",
            "full",
        )
    }
    assert cost == {
        **{"ancestral": 308, "oracle": 308, "top-1": 334, "top-2": 642, "top-3": 950},
        **{"sample-1": 334, "sample-2": 642, "nucleus-0.9": 334, "full": 2490},
    }
    assert plan.strategy_flops("full", expert, router, 1) == expert, "one expert needs no router"
    assert plan.strategy_flops("top-3", expert, router, 2) == 2 * expert + router


def test_a_whole_sample_counts_steps_solver_and_guidance():
    plain = planned("imagenet", "sample.steps=10", "sample.guidance=1.0")["strategies"]
    found = planned("imagenet", "sample.steps=10", "sample.guidance=3.0", "sample.solver=heun")["strategies"]
    router = plain["top-1"]["flops"] - plain["ancestral"]["flops"]
    assert plain["top-1"]["flops_per_sample"] == pytest.approx(10 * plain["top-1"]["flops"])
    assert found["ancestral"]["flops_per_sample"] == pytest.approx(4 * plain["ancestral"]["flops_per_sample"])
    assert found["top-1"]["flops_per_sample"] == pytest.approx(
        2 * 10 * (2 * plain["ancestral"]["flops"] + router)
    )
    assert "ancestral" in plan.sentences(planned("imagenet"))
    assert list(planned("fashion-monolith")["strategies"]) == ["ancestral"]

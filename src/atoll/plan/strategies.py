"""What each way of sampling costs."""

from collections.abc import Mapping, Sequence
from typing import Any

from atoll.config import RunConfig
from atoll.models import costs
from atoll.plan.known import about_data, network_of

STRATEGIES = ("ancestral", "top-1", "top-2", "sample-1", "nucleus-0.9", "full")
"""Of which `atoll plan` tells the cost; those by threshold cost what lies between one expert and all."""


def strategy_flops(name: str, expert: float, router: float, clusters: int) -> float:
    """FLOPs of one velocity of one sample, guidance apart (DDM Table 1: 334 for top-1, 2,490 for all eight).

    Ancestral sampling asks the router at most once in all, so it is left out there.
    """
    kind, _, number = name.partition("-")
    counts = {"full": clusters, "threshold": clusters, "top": int(number or 1) if kind == "top" else 1}
    counts["sample"] = int(number) if kind == "sample" else 1
    experts = min(counts.get(kind, 1), clusters)
    alone = clusters == 1 or kind in ("ancestral", "oracle")
    return experts * expert + (0.0 if alone else router)


def strategy_costs(
    config: RunConfig, contents: Mapping[str, Any] | None = None, names: Sequence[str] = STRATEGIES
) -> dict[str, dict[str, float]]:
    """What each strategy costs: FLOPs of one velocity, and of one whole sample as [sample] asks for it."""
    about, clusters = about_data(config, contents or {}), config.partition.clusters
    expert = sum(
        costs.forward_flops(network_of(config.expert_for(k), config, about)) for k in range(clusters)
    )
    expert /= clusters
    router = costs.forward_flops(network_of(config.router, config, about)) if clusters > 1 else 0.0
    sample = config.sample
    evaluations = sample.steps * (2 if sample.solver == "heun" else 1)
    guided = 1 + (
        sample.guided[1] - sample.guided[0] if sample.guidance > 1 and config.condition.kind != "none" else 0
    )
    table = {}
    for name in names if clusters > 1 else ("ancestral",):
        once = strategy_flops(name, expert, router, clusters)
        routed = once - strategy_flops(name, expert, 0.0, clusters)
        table[name] = {"flops": once, "flops_per_sample": evaluations * (guided * (once - routed) + routed)}
    return table

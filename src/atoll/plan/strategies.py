"""What each way of sampling costs."""

from collections.abc import Sequence
from typing import NamedTuple

from atoll.config import ENTRY_RANK, ENTRY_ROWS, ENTRY_SAMPLES, ENTRY_TIMES, Facts, RunConfig
from atoll.models import costs
from atoll.plan.known import UNKNOWN, about_data, network_of

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
    config: RunConfig, facts: Facts = UNKNOWN, names: Sequence[str] = STRATEGIES
) -> dict[str, dict[str, float]]:
    """What each strategy costs: FLOPs of one velocity, and of one whole sample as [sample] asks for it."""
    clusters, forward = config.partition.clusters, forward_flops(config, facts)
    table = {}
    for name in names if clusters > 1 else ("ancestral",):
        once = strategy_flops(name, *forward, clusters)
        experts = strategy_flops(name, forward.expert, 0.0, clusters)
        whole = _velocities(config) * (_guided(config) * experts + once - experts)
        table[name] = {"flops": once, "flops_per_sample": whole}
    return table


class Forward(NamedTuple):
    """FLOPs of one sample through a network."""

    expert: float
    """The mean of all."""
    router: float
    """0 where there is none."""


def forward_flops(config: RunConfig, facts: Facts = UNKNOWN) -> Forward:
    """What experts and router of a run cost, asked once about one sample."""
    about, clusters = about_data(config, facts), config.partition.clusters
    experts = [costs.forward_flops(network_of(config.expert_for(k), config, about)) for k in range(clusters)]
    router = costs.forward_flops(network_of(config.router, config, about)) if clusters > 1 else 0.0
    return Forward(sum(experts) / clusters, router)


def training_flops(config: RunConfig, facts: Facts = UNKNOWN) -> float:
    """What one sample costs forward and backward in the training of an expert, or of an adapter of one."""
    about, clusters = about_data(config, facts), config.partition.clusters
    networks = [network_of(config.expert_for(k), config, about) for k in range(clusters)]
    return sum(costs.training_flops(network, recompute=False) for network in networks) / clusters


def sample_flops(config: RunConfig, experts: float, strategy: str, facts: Facts = UNKNOWN) -> float:
    """FLOPs of one sample of which `experts` were asked at each time, as [sample] asks for it."""
    forward = forward_flops(config, facts)
    # Once for an ancestor given a text; given a class, the counts of the partition say it.
    asked = _velocities(config) if strategy != "ancestral" else int(config.condition.kind == "text")
    return _velocities(config) * _guided(config) * experts * forward.expert + asked * forward.router


def entry_flops(config: RunConfig, facts: Facts = UNKNOWN) -> float:
    """FLOPs of measuring where samples enter: a few of them at some times, and the moments of more."""
    if not config.expert.entry:
        return 0.0
    clusters = config.partition.clusters
    number = min(ENTRY_SAMPLES, (facts.rows or ENTRY_SAMPLES * clusters) // clusters)
    asked = len(ENTRY_TIMES) * ENTRY_ROWS * forward_flops(config, facts).expert
    return clusters * (asked + costs.moments_flops(number, about_data(config, facts).shape, ENTRY_RANK))


def _velocities(config: RunConfig) -> int:
    """How often a sample asks for a velocity."""
    return config.sample.steps * (2 if config.sample.solver == "heun" else 1)


def _guided(config: RunConfig) -> float:
    """Passes of an expert for one velocity: a second one where guidance acts."""
    begin, end = config.sample.guided
    guidable = config.condition.kind != "none" or config.sample.against == "start"
    acts = config.sample.guidance > 1 and guidable
    return 1 + (end - begin if acts else 0)

"""What distilling takes: the student's own passes, and its teachers."""

import math
from dataclasses import replace
from typing import NamedTuple

from atoll.config import FewStepConfig, NetworkConfig, RunConfig, StudentConfig, TrainConfig
from atoll.models import costs
from atoll.models.costs import Network
from atoll.plan.fitting import Asked
from atoll.plan.known import About, network_of


class Trained(NamedTuple):
    """One training: the network, how, and whom it asks."""

    network: Network
    train: TrainConfig
    teachers: Asked = Asked()


def trained(settings: TrainConfig, config: RunConfig, about: About) -> Trained | None:
    """One training of a run, known by its settings; None where they say of no network."""
    if isinstance(settings, FewStepConfig):
        return _few_step(config, about)
    if isinstance(settings, StudentConfig):
        teachers = _teachers(config, about, settings.teacher)
        return Trained(network_of(settings, config, about), settings, teachers)
    if isinstance(settings, NetworkConfig):
        return Trained(network_of(settings, config, about), settings)
    return None


def _few_step(config: RunConfig, about: About) -> Trained:
    """Both lessons as one training: trajectories of the teacher, and steps beside it."""
    own = config.student
    assert own is not None
    assert own.few is not None
    network = network_of(own, config, about)
    few, student = own.few, Asked(costs.forward_flops(network), others=costs.weight_bytes(network))
    teacher = student if few.teacher == "student" else _teachers(config, about, few.teacher)
    guide = student if own.steps else _teachers(config, about, "ensemble")
    map_network = replace(network, steps=True)
    if few.method == "progressive":
        rounds = int(math.log2(few.grid // few.fewest))
        whole, flops = few.model_copy(update={"steps": few.steps * rounds}), 1.5 * teacher.flops
        before = Asked(others=costs.weight_bytes(map_network))  # a later lesson is taught by the one before
        held = max(teacher, before, key=Asked.memory)
    else:
        # two points of a difference for the share of samples that step; 16 solver steps for 8 pairs
        stepped = few.steps * (teacher.flops + 2 * few.pairs * costs.forward_flops(map_network))
        steps = few.steps + few.trajectories
        whole = few.model_copy(update={"steps": steps})
        flops = (stepped + few.trajectories * guide.flops * few.grid / 8) / steps
        held = max([teacher] * bool(few.steps) + [guide] * bool(few.trajectories), key=Asked.memory)
    return Trained(map_network, whole, held._replace(flops=flops))


def _teachers(config: RunConfig, about: About, who: str) -> Asked:
    """Experts that teach: one for each sample, drawn by the router or not, or all of them."""
    own, clusters = config.student, config.partition.clusters
    assert own is not None
    networks = [network_of(config.expert_for(k), config, about) for k in range(clusters)]
    sizes = sorted((costs.weight_bytes(network) for network in networks), reverse=True)
    passes = sum(costs.forward_flops(network) for network in networks) / (
        1 if who == "ensemble" else clusters
    )
    flops, others = passes * _guided(own, config), float(max(map(costs.base_bytes, networks)))
    if who != "label" and clusters > 1:
        router = network_of(config.router, config, about)
        flops, others = flops + costs.forward_flops(router), others + costs.weight_bytes(router)
    return Asked(flops, tuple(sizes), others, min(own.resident or clusters, clusters))


def _guided(own: StudentConfig, config: RunConfig) -> float:
    """Passes of a teacher for one sample: a second one where guidance acts."""
    acts = own.guidance > 1 and config.condition.kind != "none"
    return 1 + (own.guided[1] - own.guided[0] if acts else 0.0)

"""Milliseconds of a picture on a GPU, by strategy, batch and precision."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from atoll import devices
from atoll.config import NetworkConfig, SampleConfig
from atoll.config.network import SIZES
from atoll.models import costs
from atoll.models.dit import DiT
from atoll.models.router import Router
from atoll.sampling import arithmetic
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.sampler import Sampler
from benchmarks import _card

CLUSTERS, STEPS = 8, 10
BATCHES = (1, 8, 64)
STRATEGIES = ("ancestral", "top-1", "full")
SHARE = 1 / 3
"""Of the free memory, that the weights of all experts may take."""


def network_for(free: float) -> NetworkConfig:
    """The largest network of the papers of which eight experts fit; at least the smallest."""
    for size in reversed(SIZES):
        network = NetworkConfig(size=f"{size}/2")
        if CLUSTERS * costs.weight_bytes(costs.Network(network, _card.LATENT)) <= SHARE * free:
            return network
    return NetworkConfig(size="S/2")


def precisions(device: torch.device) -> Iterator[str]:
    """float32 and what is fastest here."""
    yield "float32"
    best = devices.arithmetic("auto", device)
    if best != "float32":
        yield best


def samplers(
    network: NetworkConfig, shape: tuple[int, ...], device: torch.device, precision: str
) -> tuple[Sampler, Sampler]:
    """One model, and eight experts with a smaller router, as they are opened for sampling."""
    chosen = arithmetic.choose(SampleConfig(precision=precision), device)
    router = NetworkConfig(size="S/2") if network.width > 384 else network
    with torch.device(device):
        networks = [DiT(network, shape) for _ in range(CLUSTERS)]
        asked = chosen.prepared(Router(router, shape, CLUSTERS).eval().requires_grad_(False))
        experts = [chosen.prepared(one.eval().requires_grad_(False)) for one in networks]
        one = Ensemble(experts[:1], torch.ones(1), shape)
        many = Ensemble(experts, torch.ones(CLUSTERS) / CLUSTERS, shape, asked)
    return Sampler(one), Sampler(many)


def milliseconds(sampler: Sampler, strategy: str, batch: int, device: torch.device) -> float:
    """Of one picture of a batch, after a first step that compiles."""
    draw = partial(sampler.sample, batch, strategy=strategy, batch=batch)
    draw(steps=1)
    return 1e3 * _card.seconds(partial(draw, steps=STEPS), device, repeats=2) / batch


def measure(
    device: torch.device,
    network: NetworkConfig,
    shape: tuple[int, ...] = _card.LATENT,
    batches: tuple[int, ...] = BATCHES,
) -> dict[str, Any]:
    """Milliseconds of a picture, and ratios at the largest batch in the fastest precision."""
    times: dict[str, dict[str, dict[str, float]]] = {name: {} for name in ("one model", *STRATEGIES)}
    for precision in precisions(device):
        one, many = samplers(network, shape, device, precision)
        for name, by_precision in times.items():
            sampler, strategy = (one, "ancestral") if name == "one model" else (many, name)
            by_precision[precision] = {
                str(batch): milliseconds(sampler, strategy, batch, device) for batch in batches
            }
    best, large = list(precisions(device))[-1], str(batches[-1])
    alone = times["one model"]
    return {
        "benchmark": "sample",
        "ratios": {
            **{
                f"one model, {name} from eight, batch {large}, {best}": alone[best][large]
                / times[name][best][large]
                for name in STRATEGIES
            },
            f"float32, {best}, batch {large}": alone["float32"][large] / alone[best][large],
        },
        "detail": {
            "network": network.model_dump(include={"width", "depth", "heads"}),
            "steps": STEPS,
            "milliseconds of a picture, by strategy, precision and batch": times,
        },
    }

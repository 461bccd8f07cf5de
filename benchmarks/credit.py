"""What it costs to know what parts are worth: FLOPs of 2, 8 and 32 experts, and coalitions beside them.

FLOPs are counted by torch, of everything: experts, router, base, draws without a network, inner products.
Networks have random weights of the demo's size, and each has as many rows: what is measured is growth.
`--small` only shows that everything runs.
"""

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from atoll import config
from atoll.config import NetworkConfig
from atoll.credit import shapley
from atoll.credit.shapley import Game
from atoll.data.store import Batch
from atoll.evaluate import ground, home, worth
from atoll.models.dit import DiT
from atoll.models.router import Router
from atoll.runs import Run
from atoll.sampling.ensemble import Ensemble
from benchmarks._shown import show

SHAPE = (1, 28, 28)
EXPERT = NetworkConfig(width=96, depth=4, heads=4, patch=(4, 4))
ROUTER = NetworkConfig(width=64, depth=2, heads=4, patch=(4, 4))
EXPERTS, ROWS, COALITIONS = (2, 8, 32), 64, 8
"""How many there are, rows that values stand on, and experts whose coalitions are enumerated."""
HELD_OUT = 16
"""Samples of every cluster."""


def awake(network: nn.Module, seed: int) -> nn.Module:
    """Random weights everywhere: zero-initialised layers would make all experts alike."""
    source = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=source) * 0.1
    return network.eval().requires_grad_(False)


def world(experts: int, rows: int) -> tuple[Run, Ensemble, Batch]:
    """An ensemble, and samples of all its clusters that nobody trained on."""
    settings = {"name": "credit", "credit": {"num": rows, "batch": rows, "precision": 1e-9}}
    run = Run(Path("nowhere"), config.validate(settings, "a benchmark"))
    networks = [awake(DiT(EXPERT, SHAPE), k) for k in range(experts)]
    router = awake(Router(ROUTER, SHAPE, experts), 99)
    whole = Ensemble(networks, torch.full((experts,), 1 / experts), SHAPE, router)
    x_0 = torch.randn(experts * HELD_OUT, *SHAPE, generator=torch.Generator().manual_seed(1))
    return run, whole, Batch(x_0, None, torch.arange(experts).repeat_interleave(HELD_OUT))


def counted(work: Callable[[], Any]) -> int:
    """FLOPs of something, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        work()
    total: int = counter.get_total_flops()
    return total


def flops(experts: int, rows: int) -> dict[str, int]:
    """Of the values of all experts on so many rows, and of an audit that asks each as often."""
    run, whole, batch = world(experts, rows)
    base = ground.gaussian(batch.x_0)
    free = home.Price(0.0, HELD_OUT, math.prod(SHAPE), 0.0)
    return {
        "experts": experts,
        "values": counted(lambda: worth.play(run, whole, base, batch)),
        "audit": counted(lambda: home.Pass(run, whole, base, batch, free).asked()),
    }


def enumerated(game: Game) -> Tensor:
    """Shapley's value by its definition: every coalition's loss, from the same inner products."""
    experts = game.weights.shape[1]
    worths: dict[frozenset[int], Tensor] = {}
    for size in range(experts + 1):
        for coalition in itertools.combinations(range(experts), size):
            mask = torch.zeros(experts, dtype=game.weights.dtype)
            mask[list(coalition)] = 1
            worths[frozenset(coalition)] = -shapley.losses(game.weighed(game.weights * mask))
    values = torch.zeros_like(game.weights)
    for coalition, own in worths.items():
        for i in set(range(experts)) - coalition:
            orders = math.factorial(len(coalition)) * math.factorial(experts - len(coalition) - 1)
            values[:, i] += orders / math.factorial(experts) * (worths[coalition | {i}] - own)
    return values


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Of a processor, the best of several."""
    best = math.inf
    for _ in range(repeats):
        since = time.process_time()
        work()
        best = min(best, time.process_time() - since)
    return best


def measure(experts: Sequence[int], rows: int, players: int, repeats: int = 5) -> dict[str, Any]:
    """Growth with the number of experts, and what the closed form saves."""
    counts = [flops(number, rows) for number in experts]
    few, many = counts[0], counts[-1]
    more = experts[-1] / experts[0]
    run, whole, batch = world(players, rows)
    game = worth.play(run, whole, ground.gaussian(batch.x_0), batch).game
    exact, every = shapley.shapley(game), enumerated(game)
    closed, definition = (
        seconds(lambda work=work: work(game), repeats)  # type: ignore[misc]
        for work in (shapley.shapley, enumerated)
    )
    what = f"FLOPs of {{}}: as many times more for {experts[-1]} experts as there are more than {experts[0]}"
    return {
        "benchmark": "credit",
        "ratios": {
            what.format("values"): more * few["values"] / many["values"],
            what.format("an audit"): more * few["audit"] / many["audit"],
            f"all {2**players} coalitions from the same inner products": definition / closed,
        },
        "detail": {
            "flops": [{**one, "values of each": one["values"] / one["experts"]} for one in counts],
            "rows": rows,
            "largest relative difference from coalitions": float(
                (exact - every).abs().max() / exact.abs().max()
            ),
            "ms of a processor": {"closed form": 1e3 * closed, "coalitions": 1e3 * definition},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    show(measure((2, 4), 32, 4, 1) if options.small else measure(EXPERTS, ROWS, COALITIONS), options.json)


if __name__ == "__main__":
    main()

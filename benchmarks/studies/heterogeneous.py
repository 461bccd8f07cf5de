"""Do experts with different objectives make one ensemble, and what does the conversion cost?

Eight clusters of Fashion-MNIST, each with an expert that predicts the velocity on the linear path and one
that predicts the noise on the cosine path. Ensembles take some of the one and some of the other; noise
experts are converted exactly, as published, or as published with the schedule's own derivatives.

Ancestral sampling asks one expert per sample, so that every mix can be put together from the same samples
of each kind. In company, every expert with a posterior above 2 % adds to the velocity, where a wrong
conversion spoils the others' samples as well.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atoll.flow import objectives, path
from atoll.models import shrunk
from atoll.models.checkpoint import CONFIG, WEIGHTS, Objective, load
from atoll.models.expert import as_expert
from atoll.runs import Run, write_json
from atoll.sampling.ensemble import Ensemble
from atoll.sampling.sampler import Sampler
from atoll.train import jobs
from benchmarks.studies import ground
from benchmarks.studies.ground import CLUSTERS, Ground

STUDY = "heterogeneous"
NOISE = Objective(path="cosine", prediction="noise")
MIXES: dict[str, frozenset[int]] = {
    "8 velocity": frozenset(),
    "6 velocity + 2 noise": frozenset({0, 3}),
    "4 velocity + 4 noise": frozenset({0, 3, 5, 6}),
    "8 noise": frozenset(range(CLUSTERS)),
}
THRESHOLD = 0.02
CONVERSIONS = ("exact", "exact, shrunk", "published", "published, own derivatives")


class Published(nn.Module):
    """A noise expert as HDDM publishes its conversion."""

    def __init__(self, network: nn.Module, derivatives: bool) -> None:
        super().__init__()
        self.network, self.derivatives, self.path = network, derivatives, path.PATHS[NOISE.path]

    def forward(self, x_t: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """The velocity, were both paths the same."""
        predicted = self.network(x_t, t * self.path.last, condition)
        return objectives.published_velocity(self.path, predicted, x_t, t, self.derivatives)


class Decided(nn.Module):
    """A router that gives experts with little posterior none at all, so that they need not be asked."""

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router = router

    def forward(self, x_t: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Logits, minus infinity below the threshold."""
        logits = self.router(x_t, t, condition)
        return logits.masked_fill(logits.softmax(1) < THRESHOLD, -torch.inf)


def sizes(quick: bool) -> dict[str, int]:
    if quick:
        return {
            "steps": 20,
            "batch": 8,
            "router": 20,
            "num": 120,
            "company": 40,
            "solver": 5,
            "classifier": 60,
        }
    return {
        "steps": 420,
        "batch": 24,
        "router": 500,
        "num": 1000,
        "company": 200,
        "solver": 30,
        "classifier": 1500,
    }


def train(on: Ground, seed: int, weighting: str, size: dict[str, int]) -> tuple[Run, Run]:
    """Both kinds of experts for every cluster, and a router."""
    common = {"steps": size["steps"], "batch": size["batch"], "decay": "cosine"}
    velocity = on.run(f"velocity-{seed}", seed=seed, expert=common, steps=size["router"])
    noise = {**common, "path": NOISE.path, "prediction": NOISE.prediction, "weighting": weighting}
    other = on.run(f"noise-{weighting}-{seed}", seed=seed, expert=noise)
    jobs.router(velocity)
    for run in (velocity, other):
        for k in range(CLUSTERS):
            jobs.expert(run, k)
    return velocity, other


def network(folder: Path) -> nn.Module:
    return load(folder / WEIGHTS, folder / CONFIG)[0]


def experts(velocity: Run, noise: Run, mix: frozenset[int], conversion: str) -> list[nn.Module]:
    found: list[nn.Module] = []
    for k in range(CLUSTERS):
        if k not in mix:
            found.append(network(velocity.expert(k).path))
        elif conversion.startswith("exact"):
            expert, place = as_expert(network(noise.expert(k).path), NOISE), noise.expert(k).path
            shrink = conversion != "exact"
            found.append(shrunk.read(place / shrunk.FILE, expert, torch.device("cpu")) if shrink else expert)
        else:
            found.append(Published(network(noise.expert(k).path), conversion != "published"))
    return found


def measure(on: Ground, x: Tensor, expert: Tensor) -> dict[str, float]:
    """Distance to real samples, and diversity within a cluster relative to theirs."""
    features = on.features(x)
    real = torch.cat(list(on.reference.values()))
    parts = [
        ground.spread(features[expert == k]) / ground.spread(on.reference[k])
        for k in range(CLUSTERS)
        if (expert == k).sum() > 1
    ]
    return {"distance": ground.frechet(features, real), "diversity": sum(parts) / len(parts)}


def study(on: Ground, seed: int, weighting: str, size: dict[str, int]) -> dict[str, Any]:
    velocity, noise = train(on, seed, weighting, size)
    priors = torch.tensor(on.base.partition.contents.priors)
    shape = tuple(on.base.cluster(0).contents.shape)
    router = Decided(network(velocity.router.path))

    def draw(mix: frozenset[int], conversion: str, strategy: str, num: int) -> dict[str, Tensor]:
        ensemble = Ensemble(experts(velocity, noise, mix, conversion), priors, shape, router)
        traced = Sampler(ensemble).trace(num, strategy=strategy, steps=size["solver"], seed=seed, batch=150)
        return {"x_0": traced.x_0, "expert": traced.expert}

    def kept(name: str, *arguments: Any) -> dict[str, Tensor]:
        file = on.out / f"samples-{weighting}-{seed}" / f"{name}.safetensors"
        return ground.cached(file, lambda: draw(*arguments))

    everything = frozenset(range(CLUSTERS))
    plain = kept("velocity", frozenset(), "exact", "ancestral", size["num"])
    kinds = {how: kept(how, everything, how, "ancestral", size["num"]) for how in CONVERSIONS}
    rows = []
    for name, mix in MIXES.items():
        for how in CONVERSIONS if mix else ("exact",):
            chosen = torch.isin(plain["expert"], torch.tensor(sorted(mix), dtype=torch.long))
            x = torch.where(chosen.view(-1, 1, 1, 1), kinds[how]["x_0"], plain["x_0"])
            company = kept(f"{name}, {how}, company", mix, how, "full", size["company"])
            rows.append(
                {
                    "mix": name,
                    "conversion": how,
                    "ancestral": measure(on, x, plain["expert"]),
                    "company": measure(on, company["x_0"], company["expert"]),
                }
            )
    return {"seed": seed, "weighting": weighting, "size": size, "rows": rows}


def table(results: list[dict[str, Any]]) -> str:
    """Mean over seeds and its standard error."""
    lines = [
        "| experts | conversion | Fréchet, ancestral | diversity | Fréchet, in company | diversity |",
        "|---|---|---|---|---|---|",
    ]
    for rows in zip(*(result["rows"] for result in results), strict=True):
        cells = [
            ground.mean_and_error([row[strategy][what] for row in rows])
            for strategy in ("ancestral", "company")
            for what in ("distance", "diversity")
        ]
        lines.append(f"| {rows[0]['mix']} | {rows[0]['conversion']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    options = ground.options(__doc__, weighting=True)
    name = f"{STUDY}-{options.weighting}"
    if not options.table:
        since, size = time.process_time(), sizes(options.quick)
        on = Ground(options.data, options.out, classifier_steps=size["classifier"])
        found = study(on, options.seed, options.weighting, size)
        found["cpu_seconds"] = time.process_time() - since
        write_json(options.out / f"{name}-{options.seed}.json", found)
    print(table(ground.finished(options.out, name)))


if __name__ == "__main__":
    main()
